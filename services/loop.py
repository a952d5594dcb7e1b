"""The event loop of a service: libuv's, whose cold round trip over a socket costs a third of asyncio's own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import uvloop

from services import garbage


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a service to its end. What was made at import stays out of the garbage collector's sight."""
    garbage.resume()
    uvloop.run(main)
