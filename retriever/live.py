"""Live indexes of a retriever: what one replica's requests published, all replicas can draft from.

Nothing is recorded unless a policy for the index says so, for the tenants it names; each tenant's outputs stay its own
unless the policy shares them. The stream in the store is the only truth: a restarted retriever replays it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from contracts.errors import (
    DraftproofError,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
)
from retriever.live_index import LiveIndex
from retriever.live_store import LiveStore, encode_floor, encode_output
from retriever.query import Tokens
from retriever.segment import MAX_TOKEN_ID, Segment

READ_BATCH = 512


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """Whose outputs an index may learn from, and how much.

    tenants: whose outputs are recorded and who may draft from them; nobody else's, nobody else.
    shared: they all draft from one another's outputs; otherwise each from its own only.
    max_entries: outputs per generation. max_output_tokens: longer ones are refused. vocabulary_size: ids lie below it.
    keep_generations: how many of the newest generations stay askable.
    """

    tenants: frozenset[str]
    vocabulary_size: int
    shared: bool = False
    max_entries: int = 4096
    max_output_tokens: int = 1 << 16
    keep_generations: int = 256

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "max_entries", "max_output_tokens", "keep_generations"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"live.{name}", f"{getattr(self, name)} is below 1")


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """store_error: "" where the last exchange worked. newest: generation by scope. unreadable: entries by scope."""

    store_error: str
    newest: Mapping[str, int]
    unreadable: Mapping[str, int]


class LiveLibrary:
    """The live indexes by scope. Thread-safe. policies: by index name; an index without one records nothing."""

    def __init__(self, store: LiveStore, policies: Mapping[str, LivePolicy]) -> None:
        self._store = store
        self._policies = dict(policies)
        self._lock = threading.RLock()
        self._indexes: dict[str, LiveIndex] = {}
        self._store_error = ""
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        for index, policy in self._policies.items():
            for scope in {self._scope(index, policy, tenant) for tenant in policy.tenants}:
                self._indexes[scope] = LiveIndex(policy.max_entries, policy.keep_generations)

    def publish(self, index: str, tenant: str, entry_id: str, tokens: Tokens) -> int:
        """Record a published output (token ids) and return its generation; a repeat of the entry id is harmless.

        Raises PermissionDenied (no policy, or not for this tenant), InvalidArgument (empty, too long, ids outside the
        vocabulary), and what the store raises.
        """
        policy, scope = self._governed(index, tenant)
        ids = np.asarray(tokens)
        if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
            raise InvalidArgument("tokens", "an output is one non-empty row of integer token ids")
        if ids.size > policy.max_output_tokens:
            raise InvalidArgument("tokens", f"{ids.size} tokens, at most {policy.max_output_tokens}")
        if int(ids.min()) < 0 or int(ids.max()) >= min(policy.vocabulary_size, MAX_TOKEN_ID + 1):
            raise InvalidArgument("tokens", f"token ids lie below the vocabulary size {policy.vocabulary_size}")
        payload = encode_output(ids.astype(np.uint32))
        return self._store.append_live(scope, entry_id, payload, policy.max_entries)

    def poll(self) -> None:
        """Read every scope's stream up to its end. A store failure is recorded in `status`; what is known stays."""
        with self._lock:
            try:
                for scope, live in self._indexes.items():
                    while entries := self._store.read_live(scope, live.newest, READ_BATCH):
                        live.append(entries)
            except DraftproofError as error:
                self._store_error = str(error)
                return
            self._store_error = ""

    def start(self, interval_s: float = 0.2) -> None:
        """Poll in a thread until `stop`, pausing interval_s in between."""
        self._stopping.clear()
        self._watcher = threading.Thread(target=self._watch, args=(interval_s,), name="live-watcher", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """End the thread; what was read stays."""
        self._stopping.set()
        if self._watcher:
            self._watcher.join()
            self._watcher = None

    def _watch(self, interval_s: float) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(interval_s)

    def generation(self, index: str, tenant: str) -> int:
        """The newest generation a manifest may name here; 0 where the tenant has no live index or it is empty."""
        policy = self._policies.get(index)
        if policy is None or tenant not in policy.tenants:
            return 0
        with self._lock:
            return self._indexes[self._scope(index, policy, tenant)].newest

    def segments(self, index: str, tenant: str, generation: int) -> tuple[Segment, ...] | None:
        """The generation's segments (generation 0: none), or None where it is not reproducible here: a miss.

        Raises PermissionDenied for a tenant that the policy does not name.
        """
        if generation == 0:
            return ()
        _, scope = self._governed(index, tenant)
        with self._lock:
            return self._indexes[scope].segments(generation)

    def documents(self, index: str, tenant: str, generation: int) -> Sequence[Tokens]:
        """The generation's outputs in order, for compaction. Raises FailedPrecondition where it is gone."""
        _, scope = self._governed(index, tenant)
        with self._lock:
            outputs = self._indexes[scope].outputs(generation)
        if outputs is None:
            raise FailedPrecondition("live_generation", f"generation {generation} of {index} is not here")
        return outputs

    def shared(self, index: str) -> bool:
        """Whether the index's live outputs are shared between its tenants."""
        policy = self._policies.get(index)
        return policy is not None and policy.shared

    def retire(self, index: str, tenant: str, generation: int) -> None:
        """Take all outputs up to the generation out of later generations, and out of the store."""
        policy, scope = self._governed(index, tenant)
        # The entry id makes a repeated retirement one entry. It goes in first: a trimmed stream without it would leave
        # a replaying retriever with another content for the same generation.
        self._store.append_live(scope, f"floor-{generation}", encode_floor(generation), policy.max_entries + 1)
        self._store.trim_live(scope, generation)

    def status(self) -> LiveStatus:
        """A snapshot; it asks nobody."""
        with self._lock:
            return LiveStatus(
                self._store_error,
                {scope: live.newest for scope, live in self._indexes.items()},
                {scope: live.unreadable for scope, live in self._indexes.items()},
            )

    def _governed(self, index: str, tenant: str) -> tuple[LivePolicy, str]:
        policy = self._policies.get(index)
        if policy is None or tenant not in policy.tenants:
            raise PermissionDenied("live", f"no live policy of index {index!r} names tenant {tenant!r}")
        return policy, self._scope(index, policy, tenant)

    @staticmethod
    def _scope(index: str, policy: LivePolicy, tenant: str) -> str:
        return f"{index}/shared" if policy.shared else f"{index}/tenant/{tenant}"
