"""Live indexes of a retriever: what one replica's requests published, all replicas can draft from.

Nothing is recorded unless a policy for the index says so, for the tenants it names; each tenant's outputs stay its own
unless the policy shares them. A *scope* is one stream: an index, one tokenizer (ids of another mean other text), and a
tenant or all that share. The stream in the store is the only truth: a restarted retriever replays it, and one that finds
another history there than it has read (the store came back from an older snapshot) reads it from its start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from contracts.errors import (
    DraftproofError,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
)
from retriever.live_index import LiveIndex
from retriever.live_store import NOWHERE, LiveStore, encode_floor, encode_output
from retriever.segment import Segment, segment_from_documents
from retriever.trie import MAX_TOKEN_ID, Tokens

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
    """store_error: "" where the last exchange worked. By scope, newest: sequence number of the newest entry that is
    indexed; unreadable: entries; restarts: how often the store held another history than the one read before.
    """

    store_error: str
    newest: Mapping[str, int]
    unreadable: Mapping[str, int]
    restarts: Mapping[str, int]


class LiveLibrary:
    """The live indexes by scope. Thread-safe; queries never wait for the store.

    policies: by index name; an index without one records nothing. tokenizers: digests that an index's releases here are
    bound to, so that `poll` knows what to follow.
    """

    def __init__(
        self,
        store: LiveStore,
        policies: Mapping[str, LivePolicy],
        tokenizers: Callable[[str], Collection[str]] = lambda index: ("",),
    ) -> None:
        self._store = store
        self._policies = dict(policies)
        self._tokenizers = tokenizers
        self._polling = threading.Lock()
        self._state = threading.RLock()
        self._indexes: dict[str, LiveIndex] = {}
        self._restarts: dict[str, int] = {}
        self._store_error = ""
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    def publish(self, index: str, tenant: str, entry_id: str, tokens: Tokens, *, tokenizer: str = "") -> int:
        """Record a published output (token ids) and return its generation; a repeat of the entry id is harmless.

        Raises PermissionDenied (no policy, or not for this tenant), InvalidArgument (empty, too long, ids outside the
        vocabulary), and what the store raises.
        """
        policy, scope = self._governed(index, tenant, tokenizer)
        ids = np.asarray(tokens)
        if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
            raise InvalidArgument("tokens", "an output is one non-empty row of integer token ids")
        if ids.size > policy.max_output_tokens:
            raise InvalidArgument("tokens", f"{ids.size} tokens, at most {policy.max_output_tokens}")
        if int(ids.min()) < 0 or int(ids.max()) >= min(policy.vocabulary_size, MAX_TOKEN_ID + 1):
            raise InvalidArgument("tokens", f"token ids lie below the vocabulary size {policy.vocabulary_size}")
        payload = encode_output(ids.astype(np.uint32))
        return self._store.append_live(scope, entry_id, payload, policy.max_entries).generation

    def poll(self) -> None:
        """Read every scope's stream up to its end. A failure is recorded in `status`; what is known stays."""
        with self._polling:
            try:
                for scope, policy in self._followed().items():
                    if not self._read_on(scope):
                        with self._state:
                            self._indexes[scope] = LiveIndex(policy.max_entries, policy.keep_generations)
                            self._restarts[scope] = self._restarts.get(scope, 0) + 1
                        self._read_on(scope)
            except Exception as error:
                # Whatever it is, the watcher must outlive it.
                known = isinstance(error, DraftproofError)
                self._store_error = str(error) if known else f"{type(error).__name__}: {error}"
                return
            self._store_error = ""

    def _read_on(self, scope: str) -> bool:
        """Take in what the stream has beyond what was read; False where it is not the stream that was read."""
        live = self._indexes[scope]
        head = self._store.live_head(scope)
        if head == live.head:
            return True
        if head.sequence <= live.head.sequence:
            return False
        while entries := self._store.read_live(scope, live.head.sequence, READ_BATCH):
            if not live.continued_by(entries[0]):
                return False
            with self._state:
                live.receive(entries)
                missing = live.missing()
            # Only this thread, holding `_polling`, changes the index: it is sorted without the state's lock.
            built = {block: segment_from_documents(outputs) for block, outputs in missing.items()}
            with self._state:
                live.install(built)
        return True

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

    def records(self, index: str, tenant: str) -> bool:
        """Whether a policy takes this tenant's outputs."""
        policy = self._policies.get(index)
        return policy is not None and tenant in policy.tenants

    def generation(self, index: str, tenant: str, *, tokenizer: str = "") -> int:
        """The newest generation a manifest may name here; 0 where the tenant has no live index or it is empty."""
        if not self.records(index, tenant):
            return 0
        _, scope = self._governed(index, tenant, tokenizer)
        with self._state:
            live = self._indexes.get(scope)
            return live.newest.generation if live and live.newest is not NOWHERE else 0

    def holds(self, index: str, tenant: str, generation: int, *, tokenizer: str = "") -> bool:
        """Whether the entry that the generation ends with was read here. Raises PermissionDenied as `segments` does."""
        _, scope = self._governed(index, tenant, tokenizer)
        with self._state:
            live = self._indexes.get(scope)
            return live is not None and live.sequence_of(generation) is not None

    def segments(self, index: str, tenant: str, generation: int, *, tokenizer: str = "") -> tuple[Segment, ...] | None:
        """The generation's segments (generation 0: none), or None where it is not reproducible here: a miss.

        Raises PermissionDenied for a tenant that the policy does not name.
        """
        if generation == 0:
            return ()
        _, scope = self._governed(index, tenant, tokenizer)
        with self._state:
            live = self._indexes.get(scope)
            return live.segments(generation) if live else None

    def documents(self, index: str, tenant: str, generation: int, *, tokenizer: str = "") -> Sequence[Tokens]:
        """The generation's outputs in order, for compaction. Raises FailedPrecondition where it is gone."""
        _, scope = self._governed(index, tenant, tokenizer)
        with self._state:
            live = self._indexes.get(scope)
            outputs = live.outputs(generation) if live else None
        if outputs is None:
            raise FailedPrecondition("live_generation", f"generation {generation} of {index} is not here")
        return outputs

    def readers(self, index: str, tenant: str) -> frozenset[str]:
        """Who may draft from the tenant's outputs. Raises PermissionDenied for a tenant that the policy does not name."""
        policy, _ = self._governed(index, tenant, "")
        return policy.tenants if policy.shared else frozenset({tenant})

    def retire(self, index: str, tenant: str, generation: int, *, tokenizer: str = "") -> None:
        """Take all outputs up to the generation out of later generations, and out of the store.

        Raises FailedPrecondition where the generation is gone.
        """
        policy, scope = self._governed(index, tenant, tokenizer)
        with self._state:
            live = self._indexes.get(scope)
            through = live.sequence_of(generation) if live else None
        if through is None:
            raise FailedPrecondition("live_generation", f"generation {generation} of {index} is not here")
        # The entry id makes a repeated retirement one entry. It goes in first: a trimmed stream without it would leave
        # a replaying retriever with another content for the same generation.
        self._store.append_live(scope, f"floor-{through}", encode_floor(through), policy.max_entries + 1)
        self._store.trim_live(scope, through)

    def status(self) -> LiveStatus:
        """A snapshot; it asks nobody."""
        with self._state:
            return LiveStatus(
                self._store_error,
                {scope: live.newest.sequence for scope, live in self._indexes.items()},
                {scope: live.unreadable for scope, live in self._indexes.items()},
                {scope: self._restarts.get(scope, 0) for scope in self._indexes},
            )

    def _followed(self) -> dict[str, LivePolicy]:
        """The scopes of every policy, tokenizer and tenant, new ones added, and their policies."""
        followed: dict[str, LivePolicy] = {}
        with self._state:
            for index, policy in self._policies.items():
                for tokenizer in self._tokenizers(index):
                    for scope in {self._scope(index, policy, tenant, tokenizer) for tenant in policy.tenants}:
                        followed[scope] = policy
                        if scope not in self._indexes:
                            self._indexes[scope] = LiveIndex(policy.max_entries, policy.keep_generations)
        return followed

    def _governed(self, index: str, tenant: str, tokenizer: str) -> tuple[LivePolicy, str]:
        policy = self._policies.get(index)
        if policy is None or tenant not in policy.tenants:
            raise PermissionDenied("live", f"no live policy of index {index!r} names tenant {tenant!r}")
        return policy, self._scope(index, policy, tenant, tokenizer)

    @staticmethod
    def _scope(index: str, policy: LivePolicy, tenant: str, tokenizer: str) -> str:
        who = "shared" if policy.shared else f"tenant/{tenant}"
        return f"{index}/{tokenizer[:16]}/{who}"
