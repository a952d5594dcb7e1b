"""Drafting in int8: the trees of a head whose weights are what the codes stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from models.cpu.draft_packing import FurtherRows, packed
from models.cpu.formats import BF16, FP32, INT8
from models.cpu.packing import pack_bits
from models.quantized import quantize_int8
from proposer.heads.eagle import EagleNetwork
from proposer.heads.eagle_draft import EagleHead
from proposer.heads.families import network_of
from tests.unit.proposer.heads.tiny_heads import HIDDEN, VOCABULARY, Rows, frozen, manifest_of, prefix_of


def rounded(matrix: Tensor) -> Tensor:
    return quantize_int8(matrix).values()


def networks() -> tuple[EagleNetwork, EagleNetwork]:
    """One with random weights, and one whose matrices are their codes' values. Groups are of 32 inputs."""
    made = [network_of(manifest_of("eagle3", shape={"inner": 64}), frozen(), VOCABULARY) for _ in range(2)]
    first, second = made
    assert isinstance(first, EagleNetwork)
    assert isinstance(second, EagleNetwork)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for (_, parameter), (_, copy) in zip(first.named_parameters(), second.named_parameters(), strict=True):
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale + (parameter.dim() == 1))
            copy.copy_(rounded(parameter) if parameter.dim() > 1 else parameter)
        second.head = rounded(first.head)
    return first, second


@pytest.mark.parametrize("length", [9, 150])
def test_trees_have_the_bits_of_those_of_fp32_weights_of_the_same_values(length: int) -> None:
    first, second = networks()
    rows, prefix = frozen().head, prefix_of(length)
    options = {"kv_budget_tokens": 1024}
    int8 = EagleHead(first, VOCABULARY, dtype=torch.int8, target_head=rows, **options)  # type: ignore[arg-type]
    fp32 = EagleHead(second, VOCABULARY, dtype=torch.float32, target_head=rounded(rows), **options)  # type: ignore[arg-type]
    grown = [one.open(200).grow(prefix, Rows(prefix), width=4, depth=4, floor=0.0) for one in (int8, fp32)]
    assert grown[0] == grown[1]
    # Tokens that the draft vocabulary lacks are among them.
    assert set(grown[0].tokens) - set(VOCABULARY.ids.tolist())


@pytest.mark.parametrize("count", [1, 16, 21])
def test_rows_taken_out_are_packed_as_their_matrix_would_be(count: int) -> None:
    rows = torch.randn(50, HIDDEN, generator=torch.Generator().manual_seed(1))
    tokens = np.random.default_rng(0).permutation(50)[:count]
    assert np.array_equal(FurtherRows(rows, torch.int8).panels_of(tokens), packed(rows[tokens], INT8))
    for dtype, kind, bits in ((torch.float32, FP32, torch.int32), (torch.bfloat16, BF16, torch.int16)):
        stored = rows.to(dtype)
        got = FurtherRows(rows, dtype).panels_of(tokens)
        assert np.array_equal(got, pack_bits(stored[tokens].view(bits).numpy().view(f"u{stored.element_size()}")))
        if not count % 16:
            assert np.array_equal(got, packed(stored[tokens], kind))
