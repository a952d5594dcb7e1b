"""Ledger sums on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.ledger import COMPONENTS, LedgerSum
from protos.draftproof.v1 import ledger_pb2 as pb
from services.wire.scalars import duration


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
    )


def _components(given: Mapping[str, float]) -> dict[str, float]:
    # "other" is what remains of a round, and clocks of several processes may leave it a little below zero.
    known = [*COMPONENTS, *sorted(set(given) - set(COMPONENTS))]
    return {name: given[name] for name in known if name in given}


def decode_ledger(message: pb.LedgerSum) -> LedgerSum:
    """Components stand in the ledger's own order. Raises InvalidArgument naming the field."""
    return LedgerSum(
        rounds=message.rounds,
        components_us=_components(message.components_us),
        committed=message.committed,
        candidates=message.candidates,
        accepted=message.accepted,
        proposed_by=dict(message.proposed_by),
        accepted_by=dict(message.accepted_by),
        failed_by=dict(message.failed_by),
        plain_step_us=duration(message.plain_step_us, "ledger.plain_step_us"),
    )
