"""Triton's kernels compile to machine code for two generations of GPUs, which needs no GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted, not compiled"),
]
_ATTENTION = {
    "KV_HEADS": 8,
    "GROUP": 4,
    "WIDTH": 128,
    "PADDED": 128,
    "LINES": 32,
    "SPLIT": 256,
    "BLOCK": 64,
    "PAGE": 64,
    "NOWHERE": 1 << 30,
}


def _kernels(dtype: str) -> list[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Kernel, types of its arguments, constants."""
    from models.cuda import triton_attention as attention
    from models.cuda import triton_rows as rows

    data, ints, floats = f"*{dtype}", "*i32", "*fp32"
    numbers = dict.fromkeys(("table_of", "prefixes", "ends", "tile_rows", "tile_counts", "tables", "paths"), ints)
    sizes = dict.fromkeys(("tail", "window", "table_width", "path_width", "splits"), "i32")
    return [
        (
            attention.attend_split,
            {
                "query": data,
                "keys": data,
                "values": data,
                **numbers,
                "sums": floats,
                "stats": floats,
                "scale": "fp32",
                **sizes,
            },
            _ATTENTION,
        ),
        (
            attention.merge_splits,
            {"sums": floats, "stats": floats, "ends": ints, "out": data, "window": "i32", "splits": "i32"},
            {"HEADS": 32, "WIDTH": 128, "PADDED": 128, "SPLIT": 256},
        ),
        (
            rows.add_norm_row,
            {**dict.fromkeys(("x", "delta", "weight", "summed", "normed"), data), "eps": "fp32"},
            {"HIDDEN": 576, "PADDED": 1024, "ADD": True},
        ),
        (
            rows.rotate_and_store_head,
            {
                **dict.fromkeys(("qkv", "q_norm", "k_norm", "query", "keys", "values"), data),
                **dict.fromkeys(("cos", "sin"), floats),
                **dict.fromkeys(("positions", "targets"), ints),
                "eps": "fp32",
            },
            {"HEADS": 9, "KV_HEADS": 3, "WIDTH": 64, "HALF": 32, "NORM": True},
        ),
        (rows.gate_row, {"gate_up": data, "out": data}, {"INNER": 1536, "BLOCK": 1024}),
    ]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability: int, dtype: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from models.cuda.triton_kernels import OPTIONS

    for kernel, types, constants in _kernels(dtype):
        signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=OPTIONS)
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared < 100 << 10
