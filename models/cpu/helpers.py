"""The threads that run a pass beside the one that asks for it.

Not an executor's: what that does for each call, a future and its locks, takes as long on caches that a pass has emptied as
preparing the next pass does.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from models.cpu.preparing import run_at

# The records of model and pass, and what the latter lies in: held until the helper has seen that the pass is over.
_Pass = tuple[int, int, npt.NDArray[np.int64]]


class Helpers:
    """threads: of a pass, the caller's included. The others end with this object."""

    def __init__(self, threads: int) -> None:
        self._queues: list[SimpleQueue[_Pass | None]] = [SimpleQueue() for _ in range(1, threads)]
        for thread, queue in enumerate(self._queues, start=1):
            name = f"draftproof-pass-{thread}"
            threading.Thread(target=_serve, args=(queue, thread, threads), name=name, daemon=True).start()
        weakref.finalize(self, _end, self._queues)

    def join(self, model: int, work: int, memory: npt.NDArray[np.int64]) -> None:
        """Lets the helpers take part in a pass, each as soon as it comes to it, which may be when the pass is over."""
        for queue in self._queues:
            queue.put((model, work, memory))


def _serve(queue: SimpleQueue[_Pass | None], thread: int, threads: int) -> None:
    while (asked := queue.get()) is not None:
        model, work, memory = asked
        run_at(model, work, thread, threads)
        del asked, memory


def _end(queues: Sequence[SimpleQueue[_Pass | None]]) -> None:
    for queue in queues:
        queue.put(None)
