"""How long single calls may take where their caller sets no tighter limit around them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Seconds. A caller's own deadline (asyncio.timeout around a call) comes on top and only ever shortens these."""

    describe_s: float = 5.0
    open_s: float = 120.0
    verify_s: float = 60.0
    propose_s: float = 30.0
    retrieve_s: float = 5.0
    close_s: float = 5.0
