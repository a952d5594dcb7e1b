"""A target without weights: logits are a function of the tokens a row can see, KV is the list of those tokens.

Anything wrong in positions, visibility, commits or truncation changes what a row sees, hence the logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from contracts.errors import ResourceExhausted
from models.backend import BackendInfo, KVSlot, KVUsage, PassResult, RowBlock

Script = Callable[[tuple[int, ...]], np.ndarray]


def counting(vocab_size: int) -> Script:
    """After t comes t + 1, at nearly all temperatures' argmax."""

    def logits(seen: tuple[int, ...]) -> np.ndarray:
        out = np.linspace(0.0, 0.5, vocab_size, dtype=np.float32)
        out[(seen[-1] + 1) % vocab_size] = 8.0
        return out

    return logits


def hashing(vocab_size: int, scale: float = 2.0) -> Script:
    """Normal logits seeded by the whole sequence: no two prefixes agree."""

    def logits(seen: tuple[int, ...]) -> np.ndarray:
        seed = int.from_bytes(hashlib.blake2b(repr(seen).encode(), digest_size=8).digest(), "little")
        return (scale * np.random.default_rng(seed).standard_normal(vocab_size)).astype(np.float32)

    return logits


def _told(tap: str, seen: tuple[int, ...]) -> int:
    """A hidden row of one number that tells the tap and all the row sees."""
    return int.from_bytes(hashlib.blake2b(repr((tap, seen)).encode(), digest_size=3).digest(), "little")


@dataclass(eq=False)
class ScriptedSlot:
    capacity: int
    committed: list[int] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)
    released: bool = False

    @property
    def length(self) -> int:
        return len(self.committed)

    @property
    def staged(self) -> int:
        return len(self.rows)

    def seen(self, row: int) -> tuple[int, ...]:
        path: list[int] = []
        while row >= 0:
            token, row = self.rows[row]
            path.append(token)
        return (*self.committed, *reversed(path))


class ScriptedBackend:
    """`faults[name]`: an exception raised by the next call of that name, after its work if `late` holds the name.

    `stubborn[name]` is raised by every call. `passes` records the rows of each forward's blocks.
    """

    def __init__(self, script: Script, *, vocab_size: int, context_length: int = 128, kv_tokens: int = 1024) -> None:
        self.info = BackendInfo(
            family="scripted",
            vocab_size=vocab_size,
            context_length=context_length,
            hidden_size=1,
            num_layers=1,
            dtype="float32",
            backend="scripted",
            checkpoint_digest="c" * 64,
            row_invariant_up_to=64,
        )
        self.script = script
        self.kv_tokens = kv_tokens
        self.slots: list[ScriptedSlot] = []
        self.passes: list[list[int]] = []
        self.faults: dict[str, Exception] = {}
        self.stubborn: dict[str, Exception] = {}
        self.late: set[str] = set()
        self.during_forward: Callable[[], None] = lambda: None

    @property
    def reserved(self) -> int:
        return sum(slot.capacity for slot in self.slots)

    def allocate(self, capacity: int) -> KVSlot:
        self._fault("allocate")
        if self.reserved + capacity > self.kv_tokens:
            raise ResourceExhausted("kv_budget_tokens", "spent")
        slot = ScriptedSlot(capacity)
        self.slots.append(slot)
        return slot

    def forward(self, blocks: Sequence[RowBlock], *, taps: Sequence[str] = ()) -> PassResult:
        self._fault("forward")
        self.during_forward()
        self.passes.append([len(block.token_ids) for block in blocks])
        logits = []
        hidden: dict[str, list[torch.Tensor]] = {tap: [] for tap in taps}
        for block in blocks:
            slot = self._own(block.slot)
            first = slot.staged
            for token, position, parent in zip(block.token_ids, block.positions, block.parents, strict=True):
                slot.rows.append((int(token), int(parent)))
                assert len(slot.seen(slot.staged - 1)) == position + 1
                assert position < self.info.context_length
            assert slot.length + slot.staged <= slot.capacity
            wanted = range(len(block.token_ids)) if block.logits_for is None else block.logits_for.tolist()
            rows = [self.script(slot.seen(first + row)) for row in wanted]
            logits.append(torch.from_numpy(np.array(rows, dtype=np.float32).reshape(len(rows), self.info.vocab_size)))
            for tap, blocks in hidden.items():
                told = [_told(tap, slot.seen(first + row)) for row in range(len(block.token_ids))]
                blocks.append(torch.tensor(told, dtype=torch.float32).reshape(-1, self.info.hidden_size))
        self._fault("forward", late=True)
        return PassResult(logits, hidden)

    def commit(self, slot: KVSlot, keep: Sequence[int]) -> None:
        self._fault("commit")
        own = self._own(slot)
        parent = -1
        kept = []
        for row in keep:
            token, above = own.rows[row]
            assert above == parent
            kept.append(token)
            parent = row
        own.committed.extend(kept)
        own.rows.clear()
        self._fault("commit", late=True)

    def rollback(self, slot: KVSlot) -> None:
        self._own(slot).rows.clear()

    def truncate(self, slot: KVSlot, length: int) -> None:
        self._fault("truncate")
        own = self._own(slot)
        assert 0 <= length <= own.length
        del own.committed[length:]
        own.rows.clear()

    def release(self, slot: KVSlot) -> None:
        self._fault("release")
        own = self._own(slot)
        own.released = True
        self.slots.remove(own)

    def _fault(self, name: str, *, late: bool = False) -> None:
        if name in self.stubborn and not late:
            raise self.stubborn[name]
        if name in self.faults and late == (name in self.late):
            raise self.faults.pop(name)

    def _own(self, slot: KVSlot) -> ScriptedSlot:
        assert isinstance(slot, ScriptedSlot)
        assert not slot.released
        return slot


class ForkingBackend(ScriptedBackend):
    """Shares prefixes by copying them, and claims row invariance for passes of any size."""

    def __init__(self, script: Script, **options: Any) -> None:
        super().__init__(script, **options)
        self.info = replace(self.info, row_invariant_up_to=1 << 20)
        self.parked: set[KVSlot] = set()

    @property
    def usage(self) -> KVUsage:
        parked = sum(slot.capacity for slot in self.parked)
        return KVUsage(self.kv_tokens, self.kv_tokens - self.reserved, parked, token_bytes=8)

    def fork(self, slot: KVSlot, length: int, capacity: int) -> KVSlot:
        self._fault("fork")
        own = self._own(slot)
        assert length <= own.length
        made = self._own(self.allocate(capacity))
        made.committed = own.committed[:length]
        return made

    def park(self, slot: KVSlot, length: int) -> None:
        self._fault("park")
        self.truncate(slot, length)
        self._own(slot).capacity = length
        self.parked.add(slot)

    def release(self, slot: KVSlot) -> None:
        super().release(slot)
        self.parked.discard(slot)
