"""Threads that compute beside their caller's: each takes what it is handed in order, and nothing comes back.

A pool's futures cost more than such a thread's whole share of a small level does to begin.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

Job = Callable[[int], object]


class Helpers:
    """`count` threads, numbered from 1. They end with this object."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: list[SimpleQueue[Job | None]] = [SimpleQueue() for _ in range(count)]
        for number, jobs in enumerate(self._jobs, start=1):
            Thread(target=_serve, args=(jobs, number), name=f"{name}_{number}", daemon=True).start()
            weakref.finalize(self, jobs.put, None)

    def hand_out(self, job: Job, count: int) -> None:
        """Has the first `count` threads call `job(number)`, which raises nothing, after what they have to do."""
        for jobs in self._jobs[:count]:
            jobs.put(job)


def _serve(jobs: SimpleQueue[Job | None], number: int) -> None:
    while (job := jobs.get()) is not None:
        job(number)
        # What a job holds is not kept until the next one.
        del job
