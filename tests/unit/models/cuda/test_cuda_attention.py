"""The reference attention gives each row its own path and nothing else; Triton's kernels give what the reference gives."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from models.cuda.kernels import PassKernels
from models.cuda.torch_kernels import TorchKernels
from tests.unit.models.cuda.attention_cases import expected, random_case

# Without a GPU, Triton's kernels run in its interpreter: TRITON_INTERPRET=1 in the environment.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NO_TRITON = (
    "triton is not installed"
    if find_spec("triton") is None
    else "no CUDA device, and TRITON_INTERPRET=1 is not set"
    if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"
    else ""
)
SESSIONS = [
    [(0, 1)],
    [(0, 6), (30, 9), (63, 1)],
    [(256, 5), (3, 4)],
    [(255, 7), (300, 12), (512, 3), (1, 1)],
]
SHAPES = [(4, 4, 16), (6, 2, 16), (9, 3, 20), (8, 1, 32)]


@pytest.fixture(params=["torch", pytest.param("triton", marks=pytest.mark.skipif(bool(NO_TRITON), reason=NO_TRITON))])
def kernels(request: pytest.FixtureRequest) -> PassKernels:
    if request.param == "torch":
        return TorchKernels()
    from models.cuda.triton_kernels import TritonKernels

    return TritonKernels()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 1, 5, 200, 300])
@pytest.mark.parametrize(("case", "shape"), list(zip(range(4), SHAPES, strict=True)), ids=str)
def test_a_row_sees_its_path_within_the_window_and_no_poison(
    kernels: PassKernels, case: int, shape: tuple[int, int, int], window: int | None, dtype: torch.dtype
) -> None:
    heads, kv_heads, width = shape
    if dtype == torch.bfloat16 and DEVICE == "cpu" and not isinstance(kernels, TorchKernels):
        pytest.skip("Triton's interpreter multiplies the bits of bf16 as integers")
    made = random_case(case, SESSIONS[case], heads=heads, kv_heads=kv_heads, width=width, dtype=dtype)
    there = made.to(DEVICE)
    got = kernels.attend(there.query, there.keys, there.values, there.view, window).double().cpu()
    assert torch.isfinite(got).all()
    assert (got - expected(made, window)).abs().max() < {
        torch.float32: 1e-5,
        torch.float16: 4e-3,
        torch.bfloat16: 2e-2,
    }[dtype]
    assert not got[len(made.seen) :].any(), "padding rows must be zero"


def test_a_row_has_the_same_bits_whether_its_ancestors_are_committed_or_staged(kernels: PassKernels) -> None:
    """The last of 7 rows in a chain over a prefix of 253, and the same row alone over a prefix of 259."""
    whole = random_case(5, [(259, 1)], heads=6, kv_heads=2, width=16, padding=15).to(DEVICE)
    alone = kernels.attend(whole.query, whole.keys, whole.values, whole.view, None)[0]
    view = whole.view
    path = torch.tensor(whole.seen[0], dtype=torch.int32)
    rows = 7
    prefixes, ends, paths = view.prefixes.clone(), view.ends.clone(), view.paths.new_zeros((16, 8))
    prefixes[:rows] = 253
    ends[:rows] = torch.arange(254, 254 + rows, dtype=torch.int32)
    for row in range(rows):
        paths[row, : row + 1] = path[253 : 254 + row]
    # Row 6 is the one whose query and path are those of the row alone.
    query = whole.query.clone()
    query[[0, 6]] = query[[6, 0]]
    staged = type(view)(
        view.table_of,
        prefixes,
        ends,
        view.tables,
        paths,
        view.tile_rows,
        torch.zeros_like(view.tile_counts),
        view.splits,
        2,
    )
    beside = kernels.attend(query, whole.keys, whole.values, staged, None)[6]
    assert torch.equal(beside, alone)


def both(call: Callable[[PassKernels], torch.Tensor | tuple[torch.Tensor, ...]], kernels: PassKernels) -> list[float]:
    """Largest differences between the two over the largest values. Triton's interpreter cuts bf16 off where a GPU rounds."""
    results = []
    for one in (kernels, TorchKernels()):
        made = call(one)
        results.append(made if isinstance(made, tuple) else (made,))
    assert all(torch.isfinite(part).all() for parts in results for part in parts)
    return [float((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in zip(*results, strict=True)]


@pytest.mark.skipif(bool(NO_TRITON), reason=NO_TRITON or "-")
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=str)
@pytest.mark.parametrize("norms", [True, False])
def test_the_row_kernels_compute_what_torch_computes(dtype: torch.dtype, limit: float, norms: bool) -> None:
    from models.cuda.triton_kernels import TritonKernels

    generator = torch.Generator().manual_seed(3)

    def random(*shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(of).to(DEVICE)

    triton = TritonKernels()
    x, delta, weight = random(5, 44), random(5, 44), random(44)
    assert max(both(lambda one: one.add_norm(x, delta, weight, 1e-6), triton)) < limit
    assert max(both(lambda one: one.add_norm(x, None, weight, 1e-6), triton)) < limit
    wide = random(5, 2 * 1100)
    assert max(both(lambda one: one.gate(wide), triton)) < limit
    heads, kv_heads, width = 6, 2, 12
    qkv = random(5, (heads + 2 * kv_heads) * width)
    cos, sin = random(40, width // 2, of=torch.float32), random(40, width // 2, of=torch.float32)
    positions = torch.tensor([3, 39, 0, 7, 7], dtype=torch.int32, device=DEVICE)
    targets = torch.tensor([8, 1, 5, 2, 30], dtype=torch.int32, device=DEVICE)
    gains = (random(width), random(width)) if norms else None

    def stored(one: PassKernels) -> tuple[torch.Tensor, ...]:
        keys, values = (torch.zeros((32, kv_heads, width), dtype=dtype, device=DEVICE) for _ in range(2))
        query = one.rotate_and_store(qkv, gains, 1e-6, cos, sin, positions, targets, keys, values)
        untouched = np.setdiff1d(np.arange(32), targets.cpu().numpy())
        assert not keys[untouched].any()
        assert not values[untouched].any()
        return query, keys, values

    assert max(both(stored, triton)) < limit
