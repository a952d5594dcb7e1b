from __future__ import annotations

from typing import Any

from contracts.ports import SessionOpened
from tests.unit.verifier.rig import Client, Rig
from verifier.jobs import Job, Open
from verifier.worker import Worker


class Desk:
    """A worker driven by hand, and the answers it gave."""

    def __init__(self, rig: Rig | None = None, **options: Any) -> None:
        self.rig = rig or Rig(prefill_chunk=2)
        self.worker = Worker(self.rig.engine, clock=self.rig.clock, **options)
        self.answers: dict[str, Any] = {}

    def ask(self, name: str, job: Job[Any]) -> Any:
        def answer(outcome: object) -> None:
            assert name not in self.answers
            self.answers[name] = outcome

        return self.worker.submit(job, answer)

    def drain(self) -> None:
        for _ in range(100):
            if not self.worker.step():
                return
        raise AssertionError("the worker does not come to rest")

    def client(self, session_id: str = "s", prompt: tuple[int, ...] = (1, 2, 3)) -> Client:
        opening = self.rig.opening(prompt, session_id=session_id)
        self.ask(f"open {session_id}", Open(opening))
        self.drain()
        assert isinstance(self.answers.pop(f"open {session_id}"), SessionOpened)
        return Client(self.rig.engine, opening, opening.prompt.tolist())
