"""What is loaded is exactly what the configuration says, from safetensors only; everything else is refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument
from models.checkpoint import digest, resolve, tokenizer_digest
from models.load import load_backend
from tests.helpers.tiny_models import edit_config, tiny_checkpoint


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def _rewrite(directory: Path, change: Any) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_a_missing_tensor_is_named(copy: Path) -> None:
    _rewrite(copy, lambda tensors: tensors.pop("model.layers.1.mlp.down_proj.weight"))
    with pytest.raises(InvalidArgument, match=r"lacks the tensor model\.layers\.1\.mlp\.down_proj\.weight"):
        load_backend(copy)


def test_a_tensor_left_over_is_named(copy: Path) -> None:
    _rewrite(copy, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(96)}))
    with pytest.raises(InvalidArgument, match=r"no layer of the configuration uses: .*q_proj\.bias"):
        load_backend(copy)


def test_a_misshapen_tensor_is_named(copy: Path) -> None:
    _rewrite(copy, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(47)}))
    with pytest.raises(InvalidArgument, match=r"model\.norm\.weight has shape \(47,\).*\(48,\)"):
        load_backend(copy)


def test_integers_are_no_weights(copy: Path) -> None:
    _rewrite(copy, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(48, dtype=torch.int8)}))
    with pytest.raises(InvalidArgument, match="quantised"):
        load_backend(copy)


def test_a_file_cut_short_is_data_loss(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataLoss, match=r"model\.safetensors"):
        load_backend(copy)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_refused_by_name(copy: Path, name: str) -> None:
    (copy / "model.safetensors").rename(copy / name)
    with pytest.raises(InvalidArgument, match=f"{name} is pickled"):
        resolve(str(copy), copy)


def test_a_directory_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"no config\.json"):
        resolve(str(tmp_path), tmp_path)


def test_a_name_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no directory, no model id"):
        resolve("smollm9", tmp_path)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "no-such-family"}, "config.model_type"),
        ({"hidden_act": "gelu"}, "config.hidden_act"),
        ({"mlp_bias": True}, "config.mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "config.quantization_config"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "config.rope_parameters"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "config.rope_parameters"),
        ({"rope_parameters": {"rope_type": "linear"}}, "config.rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "config.partial_rotary_factor"),
        ({"num_key_value_heads": 4}, "config"),
        ({"vocab_size": None}, "config.vocab_size"),
    ],
)
def test_a_configuration_that_would_compute_something_else_is_refused(
    copy: Path, changes: dict[str, Any], field: str
) -> None:
    edit_config(copy, **changes)
    with pytest.raises(InvalidArgument) as caught:
        load_backend(copy)
    assert caught.value.field == field


def test_an_implementation_that_does_not_run_on_the_device_is_refused(tiny: Path) -> None:
    for implementation in ("cuda-torch", "cuda-graph"):
        with pytest.raises(InvalidArgument, match="does not run on 'cpu'"):
            load_backend(tiny, implementation=implementation)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'cpu-torch' has no strict mode"):
        load_backend(tiny, implementation="cpu-torch", fixed_rows=8)


def test_a_device_that_means_nothing_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    for name in ("gpu", "cuda:x", "meta"):
        with pytest.raises(InvalidArgument, match="known: cpu, cuda, cuda:N"):
            load_backend(tmp_path, device=name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_missing_gpu_is_named_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="'cuda:1' is asked for, but"):
        load_backend(tmp_path, device="cuda:1")


def test_the_digest_follows_contents_not_times_and_is_kept_in_a_side_file(copy: Path) -> None:
    first = digest(copy)
    assert (copy / ".digests.json").exists()
    (copy / "model.safetensors").touch()
    assert digest(copy) == first
    _rewrite(copy, lambda tensors: tensors["model.norm.weight"].add_(1.0))
    changed = digest(copy)
    assert changed != first
    edit_config(copy, rms_norm_eps=1e-3)
    assert digest(copy) != changed


def test_the_tokenizer_has_a_digest_of_its_own(copy: Path) -> None:
    with pytest.raises(InvalidArgument, match="no tokenizer files"):
        tokenizer_digest(copy)
    (copy / "tokenizer.json").write_text("{}")
    first, weights = tokenizer_digest(copy), digest(copy)
    (copy / "tokenizer.json").write_text("[]")
    assert tokenizer_digest(copy) != first
    assert digest(copy) == weights


def test_the_same_seed_gives_the_same_checkpoint(tmp_path: Path) -> None:
    one, other = (tiny_checkpoint(tmp_path, seed=3, name=name) for name in ("one", "other"))
    assert digest(one) == digest(other)
    assert digest(tiny_checkpoint(tmp_path, seed=4)) != digest(one)
