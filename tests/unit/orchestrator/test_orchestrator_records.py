"""Records inside a round, built in C: nobody changes one."""

import pytest

from contracts.graph import EMPTY_GRAPH
from orchestrator.budget.base import Choice, Standing
from orchestrator.gather import Gathered, Offer
from orchestrator.recovery import Answer
from orchestrator.round import RoundOutcome

GATHERED = Gathered()
CHOICE = Choice(EMPTY_GRAPH, 0)


@pytest.mark.parametrize(
    "record",
    [
        CHOICE,
        Standing(),
        Offer("s", False, 1.0),
        GATHERED,
        Answer(None, 0, 1.0, False),
        RoundOutcome(None, CHOICE, GATHERED, None, None, 0, 1.0, 1.0),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_round_s_record_cannot_be_changed(record):
    for name in record.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(record, name, None)
