"""An engine process for tests of its link: echoes payloads; `die` ends it, `error` refuses, `wait` never answers."""

import os
import socket
import sys

from contracts.errors import NotFound
from services.link.frames import Kind, Splitter, frame
from services.status import info_of

link = socket.socket(fileno=int(sys.argv[1]))
link.sendall(frame(Kind.READY, 0))
splitter = Splitter()
while data := link.recv(65536):
    for kind, call_id, payload in splitter.feed(data):
        if payload == b"die":
            os._exit(3)
        elif payload == b"error":
            refusal = info_of(NotFound("session_id", "no such session"))
            link.sendall(frame(Kind.ERROR, call_id, refusal.SerializeToString()))
        elif payload != b"wait" and kind is not Kind.CANCEL:
            link.sendall(frame(Kind.REPLY, call_id, payload))
