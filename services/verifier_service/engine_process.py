"""The engine process: `python -m services.verifier_service.start_engine FD`, started by the front.

FD is its end of the socket pair; the end of the stream is the order to stop. Where a link directory is set, orchestrators
of this machine may also ask without the front between. A thread a peer reads, decodes and, where the worker is idle, runs
the turn that its question needs; the main thread runs the rest. Answers are sent from the turn, so their cost is a
fraction of a pass.
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
from contracts.manifest import RoundManifest
from protos.draftproof.v1 import verifier_pb2 as pb
from services import garbage, telemetry
from services.link.address import link_of
from services.link.codec import Decoder, VerifyQuestion, encode
from services.link.frames import Kind, Splitter, frame
from services.link.server import clear
from services.logs import set_up_logging
from services.settings import VerifierSettings, load
from services.status import info_of, typed
from services.wire import verifier as wire
from services.wire.hidden import encode_hidden
from services.wire.receipt import encode_receipt
from verifier.jobs import Close, Describe, Entry, ExportHidden, GetReceipt, Job, Open, Verify
from verifier.worker import Worker

_READ_BYTES = 1 << 16
_log = logging.getLogger(__name__)
_question = Decoder(VerifyQuestion)

Encode = Callable[[Any], Message]
Answer = Callable[[Any], None]


class Peer:
    """One asker: the front, or an orchestrator over its link. Its questions go to the worker, the answers back to it."""

    def __init__(self, worker: Worker, connection: socket.socket) -> None:
        self._worker = worker
        self._connection = connection
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._entries: dict[int, Entry | None] = {}

    def read(self) -> None:
        """Takes questions until the stream ends."""
        splitter = Splitter()
        try:
            while data := self._connection.recv(_READ_BYTES):
                for kind, call_id, payload in splitter.feed(data):
                    self._take(kind, call_id, payload)
                self._worker.lend()
        except (OSError, DraftproofError):
            _log.exception("a peer's stream broke")

    def cancel_all(self) -> None:
        """Takes back what nobody waits for any more."""
        with self._lock:
            entries = [entry for entry in self._entries.values() if entry is not None]
            self._entries.clear()
        for entry in entries:
            self._worker.cancel(entry)

    def send(self, kind: Kind, call_id: int, payload: bytes) -> None:
        """One frame; a peer that is gone misses it."""
        try:
            with self._sending:
                self._connection.sendall(frame(kind, call_id, payload))
        except OSError:
            _log.warning("an answer found no peer to go to")

    def _take(self, kind: Kind, call_id: int, payload: bytes) -> None:
        if kind is Kind.CANCEL:
            with self._lock:
                entry = self._entries.pop(call_id, None)
            if entry is not None:
                self._worker.cancel(entry)
            return
        answer: Answer | None = None
        try:
            if kind is Kind.VERIFY:
                job, answer = self._verify(call_id, payload)
            else:
                job, encoded = _job(kind, payload)
                answer = partial(self._answer, call_id, encoded)
            with self._lock:
                self._entries[call_id] = None
            entry = self._worker.submit(job, answer, wake=False)
            with self._lock:
                # Gone where the answer came first.
                if call_id in self._entries:
                    self._entries[call_id] = entry
        except Exception as error:
            (answer or partial(self._answer, call_id, _empty))(typed(error))

    def _verify(self, call_id: int, payload: bytes) -> tuple[Job[Any], Answer]:
        message = _parse(pb.VerifyRequest, payload)
        request = wire.decode_verify(message)
        span = _span(message.traceparent, request.manifest)
        return Verify(request), partial(self._answer_verify, call_id, message.call_id, span)

    def _answer(self, call_id: int, encoded: Encode, outcome: Any) -> None:
        if isinstance(outcome, DraftproofError):
            self._reply(Kind.ERROR, call_id, info_of(outcome).SerializeToString())
        else:
            self._reply(Kind.REPLY, call_id, encoded(outcome).SerializeToString())

    def _answer_verify(self, call_id: int, question: int, span: Span | None, outcome: Any) -> None:
        if isinstance(outcome, DraftproofError):
            answer = pb.VerifyResponse(call_id=question, error=info_of(outcome))
        else:
            answer = pb.VerifyResponse(call_id=question, receipt=encode_receipt(outcome))
        self._reply(Kind.REPLY, call_id, answer.SerializeToString())
        if span is not None:
            span.end()

    def _reply(self, kind: Kind, call_id: int, payload: bytes) -> None:
        with self._lock:
            self._entries.pop(call_id, None)
        self.send(kind, call_id, payload)


class LinkPeer(Peer):
    """An orchestrator of this machine: Verify comes and goes as the link's own records."""

    def _verify(self, call_id: int, payload: bytes) -> tuple[Job[Any], Answer]:
        question = _question(payload)
        span = _span(question.traceparent, question.request.manifest)
        return Verify(question.request), partial(self._answer_link, call_id, span)

    def _answer_link(self, call_id: int, span: Span | None, outcome: Any) -> None:
        if isinstance(outcome, DraftproofError):
            self._reply(Kind.ERROR, call_id, info_of(outcome).SerializeToString())
        else:
            self._reply(Kind.REPLY, call_id, encode(outcome))
        if span is not None:
            span.end()


class EngineProcess:
    """Peers around one worker. `serve` returns when the front is gone.

    listener: a listening Unix socket for links, None for none.
    """

    def __init__(self, worker: Worker, front: socket.socket, listener: socket.socket | None = None) -> None:
        self._worker = worker
        self._front = Peer(worker, front)
        self._listener = listener

    def serve(self) -> None:
        """Runs the pass loop on this thread and the readers beside it."""
        threading.Thread(target=self._follow_front, name="front-reader", daemon=True).start()
        if self._listener is not None:
            threading.Thread(target=self._accept, args=(self._listener,), name="link-accept", daemon=True).start()
        self._front.send(Kind.READY, 0, b"")
        self._worker.run()

    def _follow_front(self) -> None:
        self._front.read()
        self._worker.stop()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._follow_link, args=(connection,), name="link-reader", daemon=True).start()

    def _follow_link(self, connection: socket.socket) -> None:
        with connection:
            peer = LinkPeer(self._worker, connection)
            peer.read()
            peer.cancel_all()


def _parse(message: type[Any], payload: bytes) -> Any:
    try:
        return message.FromString(payload)
    except DecodeError as error:
        raise InvalidArgument("", f"no {message.__name__}: {error}") from error


def _empty(_: object) -> Message:
    return pb.VerifierServiceCloseSessionResponse()


def _job(kind: Kind, payload: bytes) -> tuple[Job[Any], Encode]:
    if kind is Kind.DESCRIBE:
        _parse(pb.VerifierServiceDescribeRequest, payload)
        return Describe(), wire.encode_description
    if kind is Kind.OPEN:
        return Open(wire.decode_open(_parse(pb.VerifierServiceOpenSessionRequest, payload))), wire.encode_opened
    if kind is Kind.GET_RECEIPT:
        asked = _parse(pb.GetReceiptRequest, payload)
        return (
            GetReceipt(wire.session_id_of(asked.session_id), asked.round_id),
            lambda receipt: pb.GetReceiptResponse(receipt=encode_receipt(receipt)),
        )
    if kind is Kind.EXPORT_HIDDEN:
        wanted = _parse(pb.ExportHiddenRequest, payload)
        return (
            ExportHidden(wire.session_id_of(wanted.session_id), wanted.start, wanted.stop),
            lambda rows: pb.ExportHiddenResponse(rows=encode_hidden(rows)),
        )
    closing = _parse(pb.VerifierServiceCloseSessionRequest, payload)
    return Close(wire.session_id_of(closing.session_id)), _empty


def _span(traceparent: str, manifest: RoundManifest) -> Span | None:
    if not traceparent:
        return None
    attributes: dict[str, str | int] = {
        "draftproof.session.id": manifest.session_id,
        "draftproof.round.id": manifest.round_id,
    }
    return telemetry.tracer().start_span(
        "draftproof.verifier.verify",
        context=telemetry.parent_of(traceparent),
        kind=SpanKind.SERVER,
        attributes=attributes,
    )


def _listen(settings: VerifierSettings) -> socket.socket | None:
    path = link_of(settings.links, "verifier", settings.verifier_port)
    if path is None:
        return None
    clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen()
    return listener


def main(link_fd: int) -> None:
    """Builds the engine as the environment says, and serves; the garbage collector may rest until then."""
    # A terminal sends its interrupt to the whole group; the front decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = load(VerifierSettings)
    set_up_logging("verifier-engine", settings.log_level)
    # A reader that waits five milliseconds for the interpreter lock would be a tenth of a pass late.
    sys.setswitchinterval(0.0005)
    stop_telemetry = telemetry.start("draftproof-verifier")
    with socket.socket(fileno=link_fd) as link:
        from services.verifier_service.build import build_worker

        worker = build_worker(settings)
        garbage.resume()
        EngineProcess(worker, link, _listen(settings)).serve()
    stop_telemetry()
