"""When Python's garbage collector may run in a service: not while it starts, and never over what start-up made.

Start-up makes a quarter of a million objects and next to no garbage, so its collections are a sixth of a process's time to
import the target's libraries; and a full collection in mid-round would visit them all.
"""

from __future__ import annotations

import gc


def postpone() -> None:
    """No collections until `resume`."""
    gc.disable()


def resume() -> None:
    """Collections from now on, of what is made from now on."""
    gc.freeze()
    gc.enable()
