"""Round ledgers and their sums on the wire. Components stand in the ledger's own order."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.errors import InvalidArgument
from contracts.ledger import COMPONENTS, IndexMatch, LedgerSum, RoundLedger
from protos.draftproof.v1 import ledger_pb2 as pb
from services.wire.scalars import duration, finite


def _components(given: Mapping[str, float], field: str) -> dict[str, float]:
    unknown = sorted(set(given) - set(COMPONENTS))
    if unknown:
        raise InvalidArgument(f"{field}.components_us", f"unknown component {unknown[0]!r}")
    # Finite only: what is left of a round can be a little below zero, as clocks of several processes are compared.
    return {name: finite(given.get(name, 0.0), f"{field}.components_us") for name in COMPONENTS}


def encode_round_ledger(ledger: RoundLedger) -> pb.RoundLedger:
    """Field by field."""
    return pb.RoundLedger(
        components_us={name: getattr(ledger, name) for name in COMPONENTS},
        committed=ledger.committed,
        candidates=ledger.candidates,
        accepted=ledger.accepted,
        proposed_by=dict(ledger.proposed_by),
        accepted_by=dict(ledger.accepted_by),
        failures=dict(ledger.failures),
        matches={
            source: pb.IndexMatch(length=match.length, count=match.count, truncated=match.truncated)
            for source, match in ledger.matches.items()
        },
    )


def decode_round_ledger(message: pb.RoundLedger) -> RoundLedger:
    """Raises InvalidArgument naming the field."""
    return RoundLedger(
        **_components(message.components_us, "round.ledger"),
        committed=message.committed,
        candidates=message.candidates,
        accepted=message.accepted,
        proposed_by=dict(message.proposed_by),
        accepted_by=dict(message.accepted_by),
        failures=dict(message.failures),
        matches={
            source: IndexMatch(match.length, match.count, match.truncated) for source, match in message.matches.items()
        },
    )


def encode_ledger(ledger: LedgerSum) -> pb.LedgerSum:
    """Field by field."""
    return pb.LedgerSum(
        rounds=ledger.rounds,
        components_us=dict(ledger.components_us),
        committed=ledger.committed,
        candidates=ledger.candidates,
        accepted=ledger.accepted,
        proposed_by=dict(ledger.proposed_by),
        accepted_by=dict(ledger.accepted_by),
        failed_by=dict(ledger.failed_by),
        plain_step_us=ledger.plain_step_us,
        missed_by=dict(ledger.missed_by),
        truncated_by=dict(ledger.truncated_by),
    )


def decode_ledger(message: pb.LedgerSum) -> LedgerSum:
    """Raises InvalidArgument naming the field."""
    return LedgerSum(
        rounds=message.rounds,
        components_us=_components(message.components_us, "ledger"),
        committed=message.committed,
        candidates=message.candidates,
        accepted=message.accepted,
        proposed_by=dict(message.proposed_by),
        accepted_by=dict(message.accepted_by),
        failed_by=dict(message.failed_by),
        plain_step_us=duration(message.plain_step_us, "ledger.plain_step_us"),
        missed_by=dict(message.missed_by),
        truncated_by=dict(message.truncated_by),
    )
