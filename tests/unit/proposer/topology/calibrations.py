"""A small calibration for tests; `changes` replace its fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from contracts.calibration import Calibration, sampler_of
from contracts.manifest import TargetIdentity
from contracts.sampling import SamplingPolicy

TARGET = TargetIdentity("tiny", "c" * 64, "t" * 64, 97, 512, "float32", "cpu", "test")
GREEDY = SamplingPolicy(temperature=0.0)


def calibration(**changes: Any) -> Calibration:
    made = Calibration(
        target=TARGET,
        source="draft_model",
        source_version="v" * 64,
        drafter="",
        drafting="float32, test",
        relation="beam",
        verifier="greedy",
        sampler=sampler_of(GREEDY),
        temperatures=(0.0, 0.0),
        prompts=("some.jsonl",),
        prompts_digest="p" * 64,
        prompt_count=3,
        made_on="2026-11-29",
        code="0.1.0",
        sessions=1,
        context=256,
        trials=((100, 100), (60, 60)),
        hits=((60, 20), (30, 12)),
        rounds=100,
        committed=230,
        curve=((1, 10_000), (4, 11_000), (8, 14_000)),
        draft_ns=500,
        fixed_ns=100,
        overhead_ns=200,
    )
    return replace(made, **changes)
