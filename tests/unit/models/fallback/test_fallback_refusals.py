"""What cannot branch is refused by name and reason, before or at load; nothing is guessed and no code is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import DataLoss, DraftproofError, InvalidArgument
from models.fallback import check
from models.fallback.attention import TreePass
from models.fallback.model import CausalModel
from models.fallback.storage import PagedCache
from models.load import load_backend
from tests.helpers.tiny_models import edit_config, tiny_checkpoint, tiny_family
from tests.unit.models.fallback.families import FAMILIES, GROUPED

ALIBI = r"ALiBi"
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("bart", {}, "config.model_type", "'bart' does not run here: its forward takes no position_ids"),
    ("mamba", {}, "config.model_type", "'mamba' does not run here: it keeps a recurrent state"),
    ("recurrent_gemma", {**GROUPED, "lru_width": 32}, "config.model_type", "'recurrent_gemma'.*recurrent state"),
    (
        "lfm2",
        {**GROUPED, "layer_types": ["conv", "full_attention"] * 2},
        "config.model_type",
        "'lfm2'.*holds LinearAttentionLayer, and only keys and values can branch",
    ),
    ("bloom", {}, "config.model_type", f"'bloom'.*{ALIBI}"),
    ("mpt", {}, "config.model_type", f"'mpt'.*{ALIBI}"),
    ("falcon", {"alibi": True}, "config.alibi", f"'falcon'.*{ALIBI}"),
    (
        "gpt_neo",
        {"num_layers": 4, "attention_types": [[["global", "local"], 2]]},
        "config.attention_types",
        "counts rows",
    ),
    ("big_bird", {"intermediate_size": 64}, "config.model_type", "'big_bird'.*attention interface"),
    ("bert", {"intermediate_size": 64}, "config.model_type", "'bert' does not run here: it masks"),
    (
        "llama4_text",
        {**GROUPED, "head_dim": 8, "intermediate_size_mlp": 64, "num_local_experts": 2, "no_rope_layers": [0] * 4},
        "config.model_type",
        "'llama4_text'.*number of cached rows",
    ),
]


def refused(directory: Path, **options: Any) -> DraftproofError:
    with pytest.raises(DraftproofError) as caught:
        load_backend(directory, kv_budget_tokens=64, **options)
    return caught.value


@pytest.mark.parametrize(("family", "options", "field", "why"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_family_that_cannot_branch_is_refused_by_name_and_reason(
    tmp_path: Path, family: str, options: dict[str, Any], field: str, why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        load_backend(tiny_family(tmp_path, family, **options))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "t5"}, "config.model_type: 't5' is an encoder-decoder"),
        ({"model_type": "vit"}, "config.model_type: Transformers has no causal language model of 'vit'"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}, "config.model_type: Transformers 5"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "config.quantization_config: quantised"),
    ],
)
def test_a_configuration_of_something_else_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    directory = tiny_family(tmp_path, "gpt2")
    (directory / "mine.py").write_text("raise SystemExit('code of a checkpoint was run')\n")
    edit_config(directory, **changes)
    assert str(refused(directory)).startswith(told)


def test_pickled_weights_are_refused_unopened(tmp_path: Path) -> None:
    directory = tiny_family(tmp_path, "gpt2")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    assert "pytorch_model.bin is pickled" in refused(directory).message


def _edited(tmp_path: Path, change: Any) -> Path:
    directory = tiny_family(tmp_path, "gpt2")
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tensors: tensors.pop("transformer.h.1.mlp.c_fc.weight"), r"lacks tensors: .*h\.1\.mlp\.c_fc\.weight"),
        (lambda tensors: tensors.update({"transformer.h.9.ln_1.bias": torch.zeros(32)}), r"no layer.*h\.9\.ln_1\.bias"),
        (lambda tensors: tensors.update({"transformer.ln_f.bias": torch.zeros(31)}), r"another shape.*ln_f\.bias"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path, change: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        load_backend(_edited(tmp_path, change))


def test_a_file_cut_short_is_data_loss(tmp_path: Path) -> None:
    path = tiny_family(tmp_path, "gpt2") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert isinstance(refused(path.parent), DataLoss)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["gpt2", "gemma3_text", "mixtral"])
@pytest.mark.parametrize("wrong", ["sees siblings", "stands at its row", "forgets the prefix", "NaN"])
def test_the_check_at_load_refuses_a_model_that_is_wrong_in_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, wrong: str, dtype: Any
) -> None:
    """Models that would generate, and say something else: what each gets wrong is put in between."""
    directory = tiny_family(tmp_path, family, **FAMILIES[family])

    def twisted(positions: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor) -> TreePass:
        if wrong == "sees siblings":
            visible = torch.ones_like(visible)
        if wrong == "forgets the prefix":
            visible = visible & (torch.arange(visible.shape[1]) >= 2)
            visible[:, -len(visible) :] |= torch.eye(len(visible), dtype=torch.bool)
        return TreePass(positions, keys, visible)

    monkeypatch.setattr("models.fallback.backend.TreePass", twisted)
    if wrong == "NaN":
        monkeypatch.setattr(check, "_plain", lambda model, tokens: torch.full((*tokens.shape, 97), float("nan")))
    if wrong == "stands at its row":
        original = CausalModel.__call__

        def by_row(model: Any, rows: Any, positions: Any, cache: PagedCache, *rest: Any) -> Any:
            return original(model, rows, cache.get_seq_length() + torch.arange(len(positions)), cache, *rest)

        monkeypatch.setattr(CausalModel, "__call__", by_row)
    error = refused(directory, dtype=dtype)
    assert (error.field, repr(family) in error.message) == ("config.model_type", True)
    assert "differ from its own forward" in error.message


def test_a_family_with_a_decoder_of_ours_runs_through_the_fallback_only_where_told(tmp_path: Path) -> None:
    directory = tiny_checkpoint(tmp_path, "qwen3")
    assert load_backend(directory, kv_budget_tokens=64).info.backend == "cpu-llvm"
    assert load_backend(directory, kv_budget_tokens=64, implementation="transformers").info.backend == "transformers"
    with pytest.raises(InvalidArgument, match="model_type"):
        load_backend(tiny_family(tmp_path, "gpt2"), implementation="cpu-torch")


def test_a_start_says_that_it_is_the_slower_fallback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_backend(tiny_family(tmp_path, "gpt2"), kv_budget_tokens=64)
    assert "gpt2 runs through Transformers' own modules (backend transformers): slower" in caplog.text
