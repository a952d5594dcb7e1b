"""A round's receipt: everything the verifier published, and what it cost. The same call always returns the same receipt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from contracts.hidden import HiddenRows


class FinishReason(StrEnum):
    """Why generation ended; empty while it goes on. Cancelled is for traces: who went away gets no final message."""

    NONE = ""
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


class Closing(StrEnum):
    """How a round's last token came about, beyond the accepted path."""

    BONUS = "bonus"
    RESIDUAL = "residual"
    SAMPLE = "sample"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (nats) of a published token under the reported law, and the likeliest alternatives."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyTimings:
    """Microseconds inside the verifier. `target_us` is this session's share of a pass that served several."""

    queue_us: float = 0.0
    pack_us: float = 0.0
    target_us: float = 0.0
    select_us: float = 0.0
    commit_us: float = 0.0

    @property
    def total_us(self) -> float:
        return self.queue_us + self.pack_us + self.target_us + self.select_us + self.commit_us


@dataclass(frozen=True, slots=True)
class Receipt:
    """Outcome of one Verify call.

    `tokens`: published ids, accepted path plus at most one closing token, after truncation by EOS, stop ids and length.
    `accepted_rows`: graph rows on the published path. `generation` and `prefix_len`: after the commit.
    `pass_rows`, `pass_sessions`: the load of the pass it rode in. `hidden`: where the session exports rows, those that its
    commit made known (the anchor's and the accepted candidates'), up to position `prefix_len - 2`; `hidden_handle` names the
    state of all rows then ("<session>@<generation>").
    """

    session_id: str
    round_id: int
    payload_digest: str
    round_hash: str
    generation: int
    prefix_len: int
    tokens: tuple[int, ...]
    accepted_rows: tuple[int, ...]
    closing: Closing
    finish: FinishReason = FinishReason.NONE
    logprobs: tuple[TokenLogprob, ...] = ()
    timings: VerifyTimings = VerifyTimings()
    pass_rows: int = 0
    pass_sessions: int = 0
    hidden_handle: str = ""
    hidden: HiddenRows | None = None
