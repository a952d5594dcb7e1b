"""What the engine holds of one session: its published tokens, its KV, and the receipts not yet acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from contracts.frontier import Frontier
from contracts.hidden import HiddenRows
from contracts.ports import OpenSession, SessionOpened
from contracts.receipt import FinishReason, Receipt
from models.backend import KVSlot
from models.laws import LawProcessor
from verifier.hidden_log import HiddenLog
from verifier.selection.base import Verifier
from verifier.stopping import Publication


@dataclass(eq=False)
class Session:
    """Invariant between calls: `slot.length == prefix_len - 1` once open, nothing is staged, and `hidden`, where the
    session's sources read hidden rows, holds as many rows as the slot.

    limit: the published length at which generation ends. stop: token ids that end it earlier. opened: the answer to the
    open call, None while the prompt is being prefilled. cached: rows of the prompt whose KV was there already. number:
    counts an engine's sessions. anchor: the newest published token. alone: its candidates are chains and its passes its own,
    since its rows' bits hang on that. lost: its KV could not be restored after a fault.
    """

    request: OpenSession
    verifier: Verifier
    laws: LawProcessor
    slot: KVSlot
    limit: int
    stop: frozenset[int]
    hidden: HiddenLog | None = None
    cached: int = 0
    number: int = 0
    alone: bool = False
    queue_us: float = 0.0
    prefill_us: float = 0.0
    opened: SessionOpened | None = None
    generation: int = 0
    finish: FinishReason = FinishReason.NONE
    last_round: int = -1
    lease_until_ns: int = 0
    lost: bool = False
    receipts: dict[int, Receipt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frontier = Frontier(self.request.prompt)
        self.anchor = int(self.request.prompt[-1])

    @property
    def prefix_len(self) -> int:
        return len(self.frontier)

    @property
    def prefix(self) -> npt.NDArray[np.int64]:
        """The published ids, int64 [prefix_len]: a view that the next publication leaves as it is."""
        return self.frontier.tokens

    @property
    def taps(self) -> tuple[str, ...]:
        """What a pass over this session's rows must read."""
        return () if self.hidden is None else self.hidden.taps

    def renew(self, now_ns: int) -> None:
        self.lease_until_ns = now_ns + self.request.lease_ms * 1_000_000

    def publish(self, publication: Publication, fresh: HiddenRows | None = None) -> None:
        """Appends a publication whose KV is committed, with its hidden rows, and moves on one generation."""
        if self.hidden is not None and fresh is not None:
            self.hidden.append(fresh)
        self.frontier.publish(publication.tokens)
        self.anchor = publication.tokens[-1]
        self.generation += 1
        self.finish = publication.finish

    def file(self, receipt: Receipt, *, acknowledged: int) -> None:
        """Keeps a round's receipt until it is acknowledged, and drops those up to `acknowledged`."""
        self.receipts = {known: kept for known, kept in self.receipts.items() if known > acknowledged}
        self.receipts[receipt.round_id] = receipt
        self.last_round = receipt.round_id
