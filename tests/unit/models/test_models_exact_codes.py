"""`auto` takes codes where they lose nothing of the checkpoint, says so, and finds it out once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models import exact_codes as room
from models.exact_codes import exact_codes
from models.load import chosen_dtype, load_backend
from models.quantized import QuantizedMatrix, holds_exactly, quantize_int4, quantize_int8
from tests.helpers.tiny_models import tiny_family

Quantize = Callable[[Tensor], QuantizedMatrix]


def never(*_: object) -> NoReturn:
    raise AssertionError("looked for again")


def of_codes(source: Path, folder: Path, layers: Quantize) -> Path:
    """The checkpoint with its matrices replaced by the values of their codes, the vocabulary's of eight bits."""
    directory = folder / f"of-{layers.__name__}"
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns(".digests.json"))
    (path,) = directory.glob("*.safetensors")
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            vocabulary = "embed_tokens" in name or "lm_head" in name
            tensors[name] = (quantize_int8 if vocabulary else layers)(tensor).values()
    save_file(tensors, path)
    return directory


@pytest.mark.parametrize(("quantize", "codes"), [(quantize_int4, "int4"), (quantize_int8, "int8")])
def test_auto_takes_the_narrowest_codes_that_lose_nothing(
    grouped: Path, tmp_path: Path, quantize: Quantize, codes: str
) -> None:
    directory = of_codes(grouped, tmp_path, quantize)
    assert exact_codes(directory) == codes
    backend = load_backend(directory, dtype="auto", kv_budget_tokens=64, threads=1, implementation="cpu-llvm")
    assert backend.info.dtype == codes


def test_auto_takes_bf16_where_codes_would_lose_something(grouped: Path, tiny: Path) -> None:
    assert exact_codes(grouped) is None
    # Not whole groups deep.
    assert exact_codes(tiny) is None
    backend = load_backend(tiny, dtype="auto", kv_budget_tokens=64, threads=1, implementation="cpu-llvm")
    assert backend.info.dtype == "bfloat16"


def test_one_weight_beside_its_grid_is_enough(grouped: Path, tmp_path: Path) -> None:
    directory = of_codes(grouped, tmp_path, quantize_int4)
    (path,) = directory.glob("*.safetensors")
    tensors = load_file(path)
    last = max(name for name in tensors if "down_proj" in name)
    tensors[last][-1, -1] += 1e-3
    save_file(tensors, path)
    assert exact_codes(directory) is None


def test_it_is_found_out_once_and_again_where_the_checkpoint_changed(
    grouped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = of_codes(grouped, tmp_path, quantize_int4)
    exact_codes(directory)
    with monkeypatch.context() as patch:
        patch.setattr(room, "read_weights", never)
        assert exact_codes(directory) == "int4"
    shutil.copyfile(next(grouped.glob("*.safetensors")), next(directory.glob("*.safetensors")))
    assert exact_codes(directory) is None


def test_auto_is_bf16_where_codes_are_not_computed(grouped: Path, tmp_path: Path) -> None:
    directory = of_codes(grouped, tmp_path, quantize_int4)
    assert chosen_dtype(directory, "cpu", "cpu-llvm") == "int4"
    assert chosen_dtype(directory, "cpu", "cpu-torch") == "bfloat16"
    assert chosen_dtype(directory, "cuda") == "bfloat16"
    assert chosen_dtype(tiny_family(tmp_path, "gpt2")) == "bfloat16"


def test_infinite_and_unscalable_weights_are_no_codes() -> None:
    assert not holds_exactly(torch.full((40, 64), float("inf")), quantize_int4)
    assert not holds_exactly(torch.full((40, 64), 1e30), quantize_int8)
