"""Every sampling parameter out of range is refused by name."""

import pytest

from contracts.errors import InvalidArgument
from contracts.manifest import canonical_bytes
from contracts.sampling import SamplingPolicy, check_sampling

NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"temperature": NAN}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e-5}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 11}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"typical_p": 0.0}, "typical_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"frequency_penalty": NAN}, "frequency_penalty"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {10: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: NAN}}, "logit_bias"),
        ({"banned_ids": (10,)}, "banned_ids"),
        ({"banned_ids": tuple(range(10))}, "banned_ids"),
        ({"allowed_ids": (3,), "banned_ids": (3,)}, "allowed_ids"),
        ({"stop_ids": (-1,)}, "stop_ids"),
        ({"stop_strings": ("",)}, "stop_strings"),
        ({"stop_strings": ("x",) * 17}, "stop_strings"),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_sampling(SamplingPolicy(**changes), vocab_size=10)  # type: ignore[arg-type]
    assert caught.value.field == f"sampling.{field}"


def test_the_defaults_and_the_extremes_in_range_pass() -> None:
    check_sampling(SamplingPolicy(), vocab_size=10)
    check_sampling(SamplingPolicy(temperature=0.0, seed=2**64 - 1, top_k=10, min_tokens=4, max_tokens=4), vocab_size=10)


def test_policies_that_differ_anywhere_have_different_canonical_bytes() -> None:
    variants = [
        SamplingPolicy(),
        SamplingPolicy(temperature=0.8),
        SamplingPolicy(top_p=0.95),
        SamplingPolicy(logit_bias={1: 1.0}),
        SamplingPolicy(stop_strings=("a",)),
        SamplingPolicy(logprobs=0),
    ]
    assert len({canonical_bytes(policy.to_json()) for policy in variants}) == len(variants)
