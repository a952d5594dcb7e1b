from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contracts.calibration import CalibrationUse, calibration_from_bytes, sampler_of
from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument
from contracts.manifest import canonical_bytes, sha256_hex
from contracts.sampling import SamplingPolicy
from tests.unit.proposer.topology.calibrations import GREEDY, TARGET, calibration

SAMPLED = SamplingPolicy(temperature=0.8, top_p=0.9)


def test_what_was_written_is_read_back_with_the_same_hash_and_bytes() -> None:
    made = calibration(temperatures=(0.5, 1.0), sampler=sampler_of(SAMPLED), tree=(-1, -1, 0))
    read = calibration_from_bytes(made.to_bytes())
    assert read == made
    assert read.hash == made.hash == sha256_hex(canonical_bytes(made.to_json()))
    assert read.to_bytes() == made.to_bytes()


def test_any_changed_count_changes_the_hash() -> None:
    assert calibration(rounds=101).hash != calibration().hash


def test_a_file_changed_by_hand_is_refused() -> None:
    data = calibration().to_bytes()
    with pytest.raises(DataLoss, match="sha256"):
        calibration_from_bytes(data.replace(b'"rounds":100', b'"rounds":101'))
    with pytest.raises(DataLoss, match="sha256"):
        calibration_from_bytes(data + b" ")
    with pytest.raises(DataLoss, match="no calibration file"):
        calibration_from_bytes(data[:-20])
    with pytest.raises(DataLoss, match="no calibration file"):
        calibration_from_bytes(b"[]")


def _written(**changes: Any) -> bytes:
    """A file whose hash is right, whatever it says."""
    body = {**calibration().to_json(), **changes}
    body = {name: value for name, value in body.items() if value != "drop"}
    return canonical_bytes({"calibration": body, "sha256": sha256_hex(canonical_bytes(body))}) + b"\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "draftproof-calibration/3"}, "format"),
        ({"extra": 1}, "unknown: extra"),
        ({"draft_ns": "drop"}, "missing or unknown: draft_ns"),
        ({"hits": [[101, 0], [0, 0]]}, r"hits\[0\]"),
        ({"hits": [[1, 0]]}, "one row per depth"),
        ({"hits": [[1], [1]]}, r"hits\[0\]"),
        ({"trials": [], "hits": []}, "one row per depth"),
        ({"fixed_ns": -1}, "negative"),
        ({"curve": []}, "curve"),
        ({"curve": [[2, 5]]}, "curve"),
        ({"curve": [[1, 5], [1, 6]]}, "curve"),
        ({"curve": [[1, 0]]}, "curve"),
        ({"tree": [0]}, "shape"),
        ({"temperatures": [1.0, 0.5]}, "no range"),
        ({"temperatures": 3}, "wrong kind"),
        ({"target": {"model": "m"}}, "wrong kind"),
    ],
)
def test_a_file_with_impossible_fields_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        calibration_from_bytes(_written(**changes))


@pytest.mark.parametrize(
    ("target", "policy", "field"),
    [
        ({"checkpoint_digest": "d" * 64}, GREEDY, "calibration.target.checkpoint_digest"),
        ({"tokenizer_digest": "d" * 64}, GREEDY, "calibration.target.tokenizer_digest"),
        ({"hardware": "another"}, GREEDY, "calibration.target.hardware"),
        ({"dtype": "bfloat16"}, GREEDY, "calibration.target.dtype"),
        ({"backend": "cuda-torch"}, GREEDY, "calibration.target.backend"),
        ({"build": "other kernels"}, GREEDY, "calibration.target.build"),
        ({}, SamplingPolicy(temperature=0.7), "calibration.temperatures"),
        ({}, replace(GREEDY, repetition_penalty=1.1), "calibration.sampler.repetition_penalty"),
    ],
)
def test_another_target_sampler_or_hardware_is_refused_unless_forced(
    target: dict[str, str], policy: SamplingPolicy, field: str
) -> None:
    elsewhere = replace(TARGET, **target)  # type: ignore[arg-type]
    with pytest.raises(FailedPrecondition) as caught:
        CalibrationUse(calibration()).check(elsewhere, policy)
    assert caught.value.field == field
    forced = CalibrationUse(calibration(), forced=True)
    forced.check(elsewhere, policy)
    assert forced.label == f"forced-calibration:{calibration().hash}"


def test_where_it_was_made_it_holds_whatever_the_seed_and_length() -> None:
    use = CalibrationUse(calibration())
    use.check(replace(TARGET, model="renamed"), replace(GREEDY, seed=9, max_tokens=7, top_p=0.5))
    assert use.label == f"calibration:{calibration().hash}"
    assert calibration().mismatches(TARGET, GREEDY) == ()


def test_a_range_of_temperatures_holds_within_it() -> None:
    made = calibration(temperatures=(0.6, 1.0), sampler=sampler_of(SAMPLED))
    assert made.mismatches(TARGET, replace(SAMPLED, temperature=1.0)) == ()
    assert made.mismatches(TARGET, replace(SAMPLED, top_p=1.0))[0][0] == "calibration.sampler.top_p"
    assert [name for name, _ in made.mismatches(TARGET, replace(SAMPLED, temperature=0.5))] == [
        "calibration.temperatures"
    ]


def test_another_verifier_drafter_or_relation_is_refused_unless_forced() -> None:
    use = CalibrationUse(calibration(drafter="d" * 64))
    with pytest.raises(FailedPrecondition, match="verifier"):
        use.check(TARGET, GREEDY, "membership")
    with pytest.raises(FailedPrecondition, match="drafter"):
        use.check_source("e" * 64, "beam")
    with pytest.raises(FailedPrecondition, match="relation"):
        use.check_source("d" * 64, "independent")
    use.check(TARGET, GREEDY, "greedy")
    use.check_source("d" * 64, "beam")
    forced = replace(use, forced=True)
    forced.check(TARGET, GREEDY, "membership")
    forced.check_source("e" * 64, "independent")


def test_a_calibration_that_names_no_drafter_holds_for_none_unless_forced() -> None:
    use = CalibrationUse(calibration(drafter=""))
    with pytest.raises(FailedPrecondition, match="unnamed drafter"):
        use.check_source("d" * 64, "beam")
    replace(use, forced=True).check_source("d" * 64, "beam")


def test_other_drafting_is_refused_unless_forced() -> None:
    """A level of drafting takes another time with other kernels, weights or threads, and the tree was chosen by it."""
    use = CalibrationUse(calibration())
    use.check_drafting(calibration().drafting)
    with pytest.raises(FailedPrecondition) as refusal:
        use.check_drafting("bfloat16, test")
    assert refusal.value.field == "calibration.drafting"
    replace(use, forced=True).check_drafting("bfloat16, test")


def test_artifacts_of_the_format_before_builds_were_named_are_refused_by_format() -> None:
    with pytest.raises(InvalidArgument, match=r"calibration\.format"):
        calibration_from_bytes(_written(format="draftproof-calibration/1"))
