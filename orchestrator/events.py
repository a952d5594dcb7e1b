"""What Generate yields: chunks while it runs, and at last one Final with the certificate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from contracts.calibration import forced_of
from contracts.capability import Exactness
from contracts.ledger import LedgerSum, RoundLedger
from contracts.receipt import Closing, FinishReason, TokenLogprob


@dataclass(frozen=True)
class RoundInfo:
    """The round that a chunk came from. `prefix_len`: after the round; `candidates`, `accepted`: rows."""

    round_id: int
    session_id: str
    round_hash: str
    prefix_len: int
    candidates: int
    accepted: int
    closing: Closing
    ledger: RoundLedger


@dataclass(frozen=True)
class Chunk:
    """Newly published tokens and newly certain text.

    The two need not match: text lags behind where it might still be part of a stop string or half a character.
    `logprobs` has one entry per token where the policy asks for them, else none. `round` is None for text that was held
    back until a deadline ended the request.
    """

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    round: RoundInfo | None = None


@dataclass(frozen=True)
class Usage:
    """Token counts. `completion` counts every published token, the stopping one included, as vLLM does. `cached`: prompt
    tokens that the verifier had the KV of when the request's first session opened.
    """

    prompt: int
    completion: int
    proposed: int
    accepted: int
    cached: int = 0


@dataclass(frozen=True)
class Certificate:
    """What was promised and what it cost.

    `manifest` is the canonical bytes whose SHA-256 is `manifest_hash`; `parents` are the hashes of earlier manifests of
    this request, oldest first, where it moved to other hardware. `failures`: the latest reason by source; counts are
    in `ledger.failed_by`. `absent`: requested or default sources that were never bound, with the reason.
    """

    verifier: str
    exactness: Exactness
    promise: str
    manifest_hash: str
    manifest: bytes
    parents: tuple[str, ...]
    ledger: LedgerSum
    failures: Mapping[str, str]
    absent: Mapping[str, str]
    prefill_us: float
    sessions: int

    @property
    def forced_calibrations(self) -> Mapping[str, str]:
        """Hash by source of the calibrations that were used without being checked: the manifest names them."""
        sources = json.loads(self.manifest).get("sources", ()) if self.manifest else ()
        found = {source["name"]: forced_of(source["version"]) for source in sources}
        return {name: made for name, made in found.items() if made}

    @property
    def rounds(self) -> int:
        return self.ledger.rounds

    @property
    def proposed_by(self) -> Mapping[str, int]:
        return self.ledger.proposed_by

    @property
    def accepted_by(self) -> Mapping[str, int]:
        return self.ledger.accepted_by


@dataclass(frozen=True)
class Final:
    """The end. `stop_string` or `stop_id` says what stopped it where `finish` is stop (an EOS is a stop id)."""

    finish: FinishReason
    usage: Usage
    certificate: Certificate
    stop_string: str | None = None
    stop_id: int | None = None


GenerateEvent = Chunk | Final
