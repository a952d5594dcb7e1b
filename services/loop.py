"""The event loop of a service: libuv's, whose cold round trip over a socket costs a third of asyncio's own."""

from __future__ import annotations

import gc
from collections.abc import Coroutine
from typing import Any

import uvloop


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a service to its end.

    What was made at import is kept out of the garbage collector's sight, whose full passes would come in mid-round.
    """
    gc.collect()
    gc.freeze()
    uvloop.run(main)
