"""Packed weights on disk: what is read back is what was written, and what cannot be read is made anew."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from safetensors import safe_open

from models.config import read_config
from models.cpu import packed_file
from models.cpu.formats import FORMATS
from models.cpu.packed_file import packed_weights
from models.cpu.weights import CpuWeights, cpu_weights
from models.load import Dtype, load_backend
from models.weights import DecoderWeights, read_weights
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.models.steps import prefill

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "int8", "int4")
_STORED = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENS = list(range(20))
# SHA-256 of the arrays of weights whose values are written down below, by type. Whoever changes one changes LAYOUT too.
_LAYOUT = 1
_ARRAYS = {
    "float32": "b026c27370511d78",
    "bfloat16": "3a2dfddbfbcb99cf",
    "int8": "cdb29f0196a0f08a",
    "int4": "2660178ac5699fce",
}


def made(directory: Path, dtype: Dtype) -> CpuWeights:
    config = read_config(directory)
    return cpu_weights(read_weights(directory, config, _STORED.get(dtype)), config, FORMATS[dtype])


def never() -> NoReturn:
    raise AssertionError("made although it is there")


def arrays_of(weights: CpuWeights) -> list[np.ndarray]:
    passes, packed = weights.passes, weights.passes.packed
    vectors = (passes.norms, passes.qkv_bias, passes.out_bias, passes.head_norms)
    places = np.array([packed.head, packed.head_kind])
    return [packed.arena, packed.offsets, places, *(v for v in vectors if v is not None), *weights.embedding]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_what_is_read_back_is_what_was_written(tmp_path: Path, family: str, dtype: Dtype) -> None:
    source = tiny_checkpoint(tmp_path, family, hidden=64, intermediate_size=96)
    wanted = made(source, dtype)
    assert packed_weights(tmp_path / "packed", "digest", dtype, lambda: wanted) is wanted
    found = packed_weights(tmp_path / "packed", "digest", dtype, never)
    assert (found.passes.head_norms is None) == (family != "qwen3")
    assert (found.passes.qkv_bias is None) == (family != "qwen2")
    for one, other in zip(arrays_of(wanted), arrays_of(found), strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert found.passes.packed.arena.ctypes.data % 64 == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_from_the_file_gives_the_same_bits_and_reads_no_tensor(
    tmp_path: Path, grouped: Path, dtype: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits() -> torch.Tensor:
        backend = load_backend(
            grouped, dtype=dtype, kv_budget_tokens=64, threads=1, packed_dir=tmp_path, implementation="cpu-llvm"
        )
        return prefill(backend, backend.allocate(32), TOKENS)

    first = logits()
    monkeypatch.setattr("models.load.read_weights", lambda *_: never())
    assert torch.equal(first, logits())


def test_the_file_is_safetensors_that_others_can_read(tmp_path: Path, grouped: Path) -> None:
    wanted = packed_weights(tmp_path, "digest", "bfloat16", lambda: made(grouped, "bfloat16"))
    (path,) = tmp_path.iterdir()
    with safe_open(path, framework="np") as file:
        assert np.array_equal(file.get_tensor("arena"), wanted.passes.packed.arena)
        assert np.array_equal(file.get_tensor("norms"), wanted.passes.norms)


@pytest.mark.parametrize("damage", ["cut", "no header", "no embedding", "a name of no type"])
def test_a_file_that_cannot_be_read_is_made_anew(tmp_path: Path, grouped: Path, damage: str) -> None:
    wanted = packed_weights(tmp_path, "digest", "int8", lambda: made(grouped, "int8"))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[:-100],
            "no header": b"\xff" * 64,
            "no embedding": whole.replace(b"embedding_", b"embossing_"),
            "a name of no type": whole.replace(b'"F32"', b'"F33"'),
        }[damage]
    )
    assert packed_weights(tmp_path, "digest", "int8", lambda: wanted) is wanted
    assert path.read_bytes() == whole
    packed_weights(tmp_path, "digest", "int8", never)


def test_files_of_other_layouts_go_and_those_of_other_types_and_checkpoints_stay(
    tmp_path: Path, grouped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = made(grouped, "int8")
    for digest in ("one", "two"):
        for dtype in ("int8", "int4"):
            packed_weights(tmp_path, digest, dtype, lambda: weights)
    before = {path.name for path in tmp_path.iterdir()}
    monkeypatch.setattr(packed_file, "LAYOUT", "next")
    packed_weights(tmp_path, "one", "int8", lambda: weights)
    old, new = f"one-int8-{_LAYOUT}.safetensors", "one-int8-next.safetensors"
    assert {path.name for path in tmp_path.iterdir()} == before - {old} | {new}


def test_where_nothing_can_be_kept_weights_are_made(tmp_path: Path, grouped: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("no folder")
    weights = made(grouped, "int8")
    assert packed_weights(taken, "digest", "int8", lambda: weights) is weights
    assert packed_weights(None, "digest", "int8", lambda: weights) is weights
    assert taken.read_text() == "no folder"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_change_of_what_is_written_is_a_new_layout(tmp_path: Path, dtype: Dtype) -> None:
    config = read_config(tiny_checkpoint(tmp_path, "qwen3", hidden=32, intermediate_size=32, layers=1))

    def numbered(tensor: torch.Tensor) -> torch.Tensor:
        values = torch.arange(tensor.numel(), dtype=torch.float32).reshape(tensor.shape)
        return ((values * 37) % 251 / 64 - 2).to(_STORED.get(dtype, torch.float32))

    weights: DecoderWeights = read_weights(next(tmp_path.iterdir()), config, None).map(numbered)
    total = hashlib.sha256()
    for array in arrays_of(cpu_weights(weights, config, FORMATS[dtype])):
        total.update(array.tobytes())
    assert (packed_file.LAYOUT, total.hexdigest()[:16]) == (_LAYOUT, _ARRAYS[dtype])
