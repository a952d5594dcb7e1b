"""Codes of eight and four bits: what they find again exactly, how far off they are elsewhere, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from contracts.errors import InvalidArgument
from models.quantized import GROUP, QuantizedMatrix, quantize_int4, quantize_int8

Quantize = Callable[[Tensor], QuantizedMatrix]


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _codes(low: int, high: int, outputs: int, depth: int) -> Tensor:
    """Random codes in which each group has both ends, as a quantiser of whole ranges leaves them."""
    codes = torch.randint(low, high + 1, (outputs, depth // GROUP, GROUP), generator=torch.Generator().manual_seed(1))
    codes[..., 3], codes[..., 17] = low, high
    return codes.flatten(1)


def test_the_values_of_a_q8_0_file_are_found_again_exactly() -> None:
    scales = (_random(40, 5).abs() * 0.01).half()
    values = QuantizedMatrix(_codes(-127, 127, 40, 160).to(torch.int8), scales, None).values()
    assert torch.equal(quantize_int8(values).values(), values)


@pytest.mark.parametrize("shift", [-0.3, 0.0, 2.0])
def test_the_values_of_a_q4_1_file_are_found_again_exactly(shift: float) -> None:
    scales, offsets = (_random(40, 5).abs() * 0.01).half(), (_random(40, 5, seed=2) * 0.1 + shift).half()
    values = QuantizedMatrix(_codes(0, 15, 40, 160).to(torch.uint8), scales, offsets).values()
    assert torch.equal(quantize_int4(values).values(), values)


@pytest.mark.parametrize(("quantize", "steps"), [(quantize_int8, 254), (quantize_int4, 15)])
def test_other_weights_are_rounded_to_the_nearest_code(quantize: Quantize, steps: int) -> None:
    matrix = _random(64, 96)
    groups = matrix.unflatten(1, (-1, GROUP))
    spread = groups.amax(2) - groups.amin(2) if steps == 15 else 2 * groups.abs().amax(2)
    error = (quantize(matrix).values() - matrix).abs().unflatten(1, (-1, GROUP)).amax(2)
    # Half a step, and what scale and offset lose as fp16.
    assert (error <= spread / steps / 2 + spread * 2**-9).all()
    assert error.max() > spread.max() / steps / 8


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
@pytest.mark.parametrize("value", [0.0, 0.375, -2.0])
def test_groups_of_one_value_keep_it(quantize: Quantize, value: float) -> None:
    matrix = torch.full((3, 2 * GROUP), value)
    assert torch.allclose(quantize(matrix).values(), matrix, rtol=2**-10)


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_what_codes_cannot_hold_is_refused_by_name(quantize: Quantize) -> None:
    with pytest.raises(InvalidArgument, match=r"dtype.*whole groups of 32 inputs, one has 48"):
        quantize(torch.zeros(4, 48))
    for value in (float("nan"), float("inf"), 1e8):
        matrix = torch.zeros(2, GROUP)
        matrix[1, 5] = value
        with pytest.raises(InvalidArgument, match=r"dtype.*finite"):
            quantize(matrix)
