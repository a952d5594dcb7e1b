"""The engine process: `python -m services.verifier_service.engine_process FD`, started by the front.

FD is its end of the socket pair; the end of the stream is the order to stop. One thread reads and decodes, the main
thread runs passes. Answers are sent from the pass loop, so their cost is a fraction of a pass.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError, Message
from opentelemetry.trace import Span, SpanKind

from contracts.errors import DraftproofError, InvalidArgument
from protos.draftproof.v1 import verifier_pb2 as pb
from services import telemetry
from services.logs import set_up_logging
from services.settings import VerifierSettings, load
from services.status import info_of, typed
from services.verifier_service.frames import Kind, Splitter, frame
from services.wire import verifier as wire
from services.wire.receipt import encode_receipt
from verifier.jobs import Close, Describe, Entry, GetReceipt, Job, Open, Verify
from verifier.worker import Worker

_READ_BYTES = 1 << 18
_log = logging.getLogger(__name__)

Encode = Callable[[Any], Message]
Answer = Callable[[Any], None]


class EngineProcess:
    """Questions from the socket to the worker, answers back. `serve` returns when the front is gone."""

    def __init__(self, worker: Worker, link: socket.socket) -> None:
        self._worker = worker
        self._link = link
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._entries: dict[int, Entry | None] = {}

    def serve(self) -> None:
        """Runs the pass loop on this thread and the reader beside it."""
        reader = threading.Thread(target=self._read, name="front-reader", daemon=True)
        reader.start()
        self._send(Kind.READY, 0, b"")
        self._worker.run()

    def _read(self) -> None:
        splitter = Splitter()
        try:
            while data := self._link.recv(_READ_BYTES):
                for kind, call_id, payload in splitter.feed(data):
                    self._take(kind, call_id, payload)
        except (OSError, DraftproofError):
            _log.exception("the front's stream broke")
        self._worker.stop()

    def _take(self, kind: Kind, call_id: int, payload: bytes) -> None:
        if kind is Kind.CANCEL:
            with self._lock:
                entry = self._entries.pop(call_id, None)
            if entry is not None:
                self._worker.cancel(entry)
            return
        answer: Answer = partial(self._answer, call_id, _empty)
        try:
            if kind is Kind.VERIFY:
                message = _parse(pb.VerifyRequest, payload)
                answer = partial(self._answer_verify, call_id, message.call_id, _span(message))
                job: Job[Any] = Verify(wire.decode_verify(message))
            else:
                job, encode = _job(kind, payload)
                answer = partial(self._answer, call_id, encode)
            with self._lock:
                self._entries[call_id] = None
            entry = self._worker.submit(job, answer)
            with self._lock:
                # Gone where the answer came first.
                if call_id in self._entries:
                    self._entries[call_id] = entry
        except Exception as error:
            answer(typed(error))

    def _answer(self, call_id: int, encode: Encode, outcome: Any) -> None:
        if isinstance(outcome, DraftproofError):
            self._reply(Kind.ERROR, call_id, info_of(outcome))
        else:
            self._reply(Kind.REPLY, call_id, encode(outcome))

    def _answer_verify(self, call_id: int, question: int, span: Span | None, outcome: Any) -> None:
        if isinstance(outcome, DraftproofError):
            self._reply(Kind.REPLY, call_id, pb.VerifyResponse(call_id=question, error=info_of(outcome)))
        else:
            self._reply(Kind.REPLY, call_id, pb.VerifyResponse(call_id=question, receipt=encode_receipt(outcome)))
        if span is not None:
            span.end()

    def _reply(self, kind: Kind, call_id: int, message: Message) -> None:
        with self._lock:
            self._entries.pop(call_id, None)
        self._send(kind, call_id, message.SerializeToString())

    def _send(self, kind: Kind, call_id: int, payload: bytes) -> None:
        try:
            with self._sending:
                self._link.sendall(frame(kind, call_id, payload))
        except OSError:
            _log.warning("an answer found no front to go to")


def _parse(message: type[Any], payload: bytes) -> Any:
    try:
        return message.FromString(payload)
    except DecodeError as error:
        raise InvalidArgument("", f"no {message.__name__}: {error}") from error


def _empty(_: object) -> Message:
    return pb.VerifierServiceCloseSessionResponse()


def _job(kind: Kind, payload: bytes) -> tuple[Job[Any], Encode]:
    if kind is Kind.DESCRIBE:
        return Describe(), wire.encode_description
    if kind is Kind.OPEN:
        return Open(wire.decode_open(_parse(pb.VerifierServiceOpenSessionRequest, payload))), wire.encode_opened
    if kind is Kind.GET_RECEIPT:
        asked = _parse(pb.GetReceiptRequest, payload)
        return (
            GetReceipt(wire.session_id_of(asked.session_id), asked.round_id),
            lambda receipt: pb.GetReceiptResponse(receipt=encode_receipt(receipt)),
        )
    closing = _parse(pb.VerifierServiceCloseSessionRequest, payload)
    return Close(wire.session_id_of(closing.session_id)), _empty


def _span(message: pb.VerifyRequest) -> Span | None:
    if not message.traceparent:
        return None
    attributes: dict[str, str | int] = {
        "draftproof.session.id": message.manifest.session_id,
        "draftproof.round.id": message.manifest.round_id,
    }
    return telemetry.tracer().start_span(
        "draftproof.verifier.verify",
        context=telemetry.parent_of(message.traceparent),
        kind=SpanKind.SERVER,
        attributes=attributes,
    )


def main(link_fd: int) -> None:
    """Builds the engine as the environment says, and serves."""
    # A terminal sends its interrupt to the whole group; the front decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = load(VerifierSettings)
    set_up_logging("verifier-engine", settings.log_level)
    # A reader that waits five milliseconds for the interpreter lock would be a tenth of a pass late.
    sys.setswitchinterval(0.0005)
    stop_telemetry = telemetry.start("draftproof-verifier")
    with socket.socket(fileno=link_fd) as link:
        from services.verifier_service.build import build_worker

        EngineProcess(build_worker(settings), link).serve()
    stop_telemetry()


if __name__ == "__main__":
    main(int(sys.argv[1]))
