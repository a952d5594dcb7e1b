"""The one interface to a model: ragged passes of tree rows over cached prefixes, and the KV cache behind it.

A pass *stages* the keys and values of its rows; `commit` keeps a root-to-node path of them, and the rest vanish. So a
verifier can run a tree of guesses and keep what was accepted without running anything twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BackendInfo:
    """What a manifest seals about a loaded model.

    `dtype` is that of the weights ("float32", "bfloat16", "int8", "int4"); `backend` names the implementation that computes
    ("cpu-llvm", "cpu-torch", "cuda-graph", "cuda-torch", "transformers"). `row_invariant_up_to` is the number of rows up to
    which a pass gives each row bit for bit what a pass of that row alone over the same committed prefix gives; 0 claims
    nothing. `build` says what that implementation was built from (`models.build`), "" where it is not stated.
    """

    family: str
    vocab_size: int
    context_length: int
    hidden_size: int
    num_layers: int
    dtype: str
    backend: str
    checkpoint_digest: str
    row_invariant_up_to: int
    build: str = ""


class KVSlot(Protocol):
    """One session's share of the cache, owned by the backend that allocated it."""

    @property
    def length(self) -> int:
        """Committed rows; committed row i stands at position i."""
        ...

    @property
    def capacity(self) -> int:
        """Committed and staged rows that fit."""
        ...

    @property
    def staged(self) -> int:
        """Rows of passes since the last commit or rollback, which await either."""
        ...


@dataclass(frozen=True)
class RowBlock:
    """One session's share of a ragged pass.

    slot: all its committed rows are visible to every row of the block (within the layer's sliding window, if any).
    token_ids, positions: int64 [N]; positions are absolute, tree siblings share one, and a row's position is that of
        its parent plus one (`slot.length` for rows without a parent).
    parents: int64 [N]; -1 for a row that sees the committed prefix and itself only, else an earlier staged row. Staged
        rows are counted over the whole slot: row i of the block is staged row `slot.staged + i`, so that a tree may be
        grown level by level over several passes. A row sees exactly its ancestors and itself.
    logits_for: int64 [W], the rows whose logits are wanted, in the order wanted; None for all, empty for none.
    inputs: float32 [N, hidden_size] on the host, what the first layer reads in place of the tokens' embeddings (draft heads
        are layers over something else than embeddings); None for the embeddings.
    """

    slot: KVSlot
    token_ids: Int64Array
    positions: Int64Array
    parents: Int64Array
    logits_for: Int64Array | None = None
    inputs: Tensor | None = None


@dataclass(frozen=True)
class PassResult:
    """logits: per block float32 [W, vocab_size]. hidden: per tap name and block float32 [N, hidden_size].

    On the host or on the backend's device, where the pass may still be running: reading a value waits for it.
    """

    logits: Sequence[Tensor]
    hidden: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KVUsage:
    """The cache in tokens, whole pages counted. `parked_tokens`: held by parked slots alone, free once those are released;
    what is neither free nor parked is held by other slots. `token_bytes`: bytes of one token over all layers.
    """

    total_tokens: int
    free_tokens: int
    parked_tokens: int
    token_bytes: int


class Backend(Protocol):
    """A loaded model with its KV cache. Not thread-safe: one engine drives one backend."""

    @property
    def info(self) -> BackendInfo: ...

    def allocate(self, capacity: int) -> KVSlot:
        """Reserve `capacity` rows of the token budget. Raises ResourceExhausted when they are not left."""
        ...

    def forward(self, blocks: Sequence[RowBlock], *, taps: Sequence[str] = ()) -> PassResult:
        """Run all rows of all blocks in one pass and stage their keys and values in each slot.

        taps: "final_norm" (what the head reads) or "layer:k" (raw output of layer k, 0-based).
        Raises InvalidArgument for malformed blocks or taps, ResourceExhausted when a slot has no room, and
        FailedPrecondition when a slot is released or another backend's. Nothing is staged then.
        """
        ...

    def commit(self, slot: KVSlot, keep: Sequence[int]) -> None:
        """Make the staged rows `keep`, a path from a parentless row downwards, committed rows; drop the others."""
        ...

    def rollback(self, slot: KVSlot) -> None:
        """Drop all staged rows."""
        ...

    def truncate(self, slot: KVSlot, length: int) -> None:
        """Shrink the committed prefix to `length` rows and drop all staged rows."""
        ...

    def release(self, slot: KVSlot) -> None:
        """Give the slot's rows back to the budget; the slot is dead afterwards. Releasing twice is harmless."""
        ...


@runtime_checkable
class PrefixBackend(Backend, Protocol):
    """A backend whose slots may share the rows of a common prefix."""

    @property
    def usage(self) -> KVUsage: ...

    def fork(self, slot: KVSlot, length: int, capacity: int) -> KVSlot:
        """A slot of `capacity` rows whose first `length` are `slot`'s, committed; only the rows beyond what is shared are
        taken from the budget. Neither slot sees what the other does afterwards.

        Raises InvalidArgument past the committed rows of `slot`, ResourceExhausted as `allocate` does.
        """
        ...

    def park(self, slot: KVSlot, length: int) -> None:
        """Shrink the slot to its first `length` committed rows, for forks only: its other rows go back to the budget, and
        these count as parked.
        """
        ...
