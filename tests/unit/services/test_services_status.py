"""The table between errors and gRPC status is total both ways, and errors survive the journey."""

import grpc
import pytest

from contracts import errors
from protos.draftproof.v1.errors_pb2 import ErrorInfo
from services import status


@pytest.mark.parametrize("kind", errors.ALL_ERRORS)
def test_every_error_has_a_status_and_comes_back(kind: type[errors.DraftproofError]) -> None:
    code = status.STATUS_OF[kind]
    assert code.name == kind.code
    assert status.ERROR_OF[code] is kind


def test_every_status_but_ok_has_an_error() -> None:
    assert set(status.ERROR_OF) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


def test_no_two_errors_share_a_status() -> None:
    assert len(set(status.STATUS_OF.values())) == len(errors.ALL_ERRORS)


def test_every_subclass_is_listed() -> None:
    assert set(errors.DraftproofError.__subclasses__()) == set(errors.ALL_ERRORS)


@pytest.mark.parametrize("kind", errors.ALL_ERRORS)
@pytest.mark.parametrize("retry_after_ms", [None, 0, 250])
def test_an_error_survives_as_a_message(kind: type[errors.DraftproofError], retry_after_ms: int | None) -> None:
    sent = kind("sampling.temperature", "NaN is not finite", retry_after_ms=retry_after_ms)
    back = status.error_of_info(ErrorInfo.FromString(status.info_of(sent).SerializeToString()))
    assert type(back) is kind
    assert (back.field, back.message, back.retry_after_ms) == (sent.field, sent.message, retry_after_ms)


def _failed(code: grpc.StatusCode, trailing: tuple[tuple[str, bytes], ...] = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details="words")


@pytest.mark.parametrize("kind", errors.ALL_ERRORS)
def test_an_error_survives_as_status_details(kind: type[errors.DraftproofError]) -> None:
    sent = kind("prompt", "is empty", retry_after_ms=7)
    details = (status.DETAILS_KEY, status.status_details(sent))
    back = status.error_of_call(_failed(status.STATUS_OF[kind], (details,)))
    assert type(back) is kind
    assert (back.field, back.message, back.retry_after_ms) == ("prompt", "is empty", 7)


def test_a_bare_status_and_unreadable_details_still_mean_something() -> None:
    assert isinstance(status.error_of_call(_failed(grpc.StatusCode.UNAVAILABLE)), errors.Unavailable)
    garbled = ((status.DETAILS_KEY, b"\xff\xff\xff"),)
    assert isinstance(status.error_of_call(_failed(grpc.StatusCode.NOT_FOUND, garbled)), errors.NotFound)


def test_an_unknown_code_is_internal() -> None:
    assert isinstance(status.error_of_info(ErrorInfo(code="SOMETHING_NEW", message="x")), errors.Internal)


def test_what_nobody_foresaw_keeps_its_text_to_itself() -> None:
    hidden = status.typed(ValueError("a secret path"))
    assert isinstance(hidden, errors.Internal)
    assert "secret" not in str(hidden)


@pytest.mark.parametrize("long", ["x" * 1_000_000, "é\n" * 100_000, "\ud800" * 5_000], ids=["ascii", "wide", "half"])
def test_an_error_that_quotes_a_long_text_stays_below_what_transports_carry(long: str) -> None:
    sent = errors.InvalidArgument(f"options.{long}", f"unknown {long!r}")
    back = status.error_of_call(
        _failed(grpc.StatusCode.INVALID_ARGUMENT, ((status.DETAILS_KEY, status.status_details(sent)),))
    )
    assert back.field.startswith("options.")
    assert back.message.startswith("unknown ")
    # Percent signs triple a text, base64 adds a third; the soft limit is 8 KiB of metadata.
    assert 3 * len(status._text_of(sent).encode()) + 4 * len(status.status_details(sent)) // 3 < 7_000


def test_the_one_error_that_ended_a_task_group_is_told_as_itself() -> None:
    lost = errors.InvalidArgument("suffix", "too long")
    assert status.typed(ExceptionGroup("unhandled errors", [lost])) is lost
    assert isinstance(status.typed(ExceptionGroup("two", [lost, lost])), errors.Internal)
