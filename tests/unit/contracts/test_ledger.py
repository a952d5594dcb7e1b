"""The ledger's arithmetic: totals over totals, and the speed-up of M7.7 section 0x02C."""

import pytest

from contracts.ledger import COMPONENTS, IndexMatch, RoundLedger, add_sums, sum_ledgers


def test_components_add_up_and_overhead_leaves_out_the_useful_work() -> None:
    ledger = RoundLedger(proposal=1, retrieval=2, packing=3, wire=4, queue=5, verify=100, selection=6, state=7, other=8)
    assert ledger.total_us == 136
    assert ledger.overhead_us == 136 - 1 - 2 - 100 - 6


def test_time_per_token_and_speedup_are_totals_over_totals() -> None:
    total = sum_ledgers(
        [RoundLedger(verify=40, committed=1), RoundLedger(verify=60, proposal=20, committed=5)], plain_step_us=40
    )
    assert total.time_per_committed_token_us == 20
    assert total.tokens_per_pass == 3
    assert total.speedup == 40 * 6 / 120


def test_counts_by_source_are_summed_and_failures_counted_per_round() -> None:
    total = sum_ledgers(
        [
            RoundLedger(proposed_by={"a": 3}, accepted_by={"a": 1}, failures={"b": "late"}),
            RoundLedger(proposed_by={"a": 2, "b": 4}, failures={"b": "gone"}),
        ]
    )
    assert total.proposed_by == {"a": 5, "b": 4}
    assert total.accepted_by == {"a": 1}
    assert total.failed_by == {"b": 2}


def test_misses_and_truncations_of_indexes_are_counted_per_round() -> None:
    rounds = [
        RoundLedger(matches={"retrieval": IndexMatch(0, 0, False)}),
        RoundLedger(matches={"retrieval": IndexMatch(7, 3, True), "retrieval:b": IndexMatch(2, 1, False)}),
        RoundLedger(),
    ]
    total = sum_ledgers(rounds)
    assert (total.missed_by, total.truncated_by) == ({"retrieval": 1}, {"retrieval": 1})


def test_sums_of_requests_add_up_to_the_sum_of_all_their_rounds() -> None:
    rounds = [
        RoundLedger(verify=40, committed=1, candidates=3, proposed_by={"a": 3}, failures={"b": "late"}),
        RoundLedger(wire=5, committed=2, accepted=1, accepted_by={"a": 1}, matches={"r": IndexMatch(0, 0, False)}),
        RoundLedger(proposal=20, committed=5, proposed_by={"a": 2, "b": 4}, matches={"r": IndexMatch(7, 3, True)}),
    ]
    apart = [sum_ledgers(rounds[:1], plain_step_us=9), sum_ledgers(rounds[1:], plain_step_us=8)]
    assert add_sums(apart) == sum_ledgers(rounds, plain_step_us=9)


def test_an_empty_request_has_no_infinite_figures() -> None:
    total = sum_ledgers([])
    assert (total.time_per_committed_token_us, total.tokens_per_pass, total.speedup) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_component_is_a_ledger_field(name: str) -> None:
    assert RoundLedger(**{name: 2.0}).total_us == 2.0  # type: ignore[arg-type]
