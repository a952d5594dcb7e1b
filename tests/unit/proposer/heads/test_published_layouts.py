"""Reading published layouts is strict: what is missing, left over, misshapen or another function is refused by its name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import DataLoss, DraftproofError, FailedPrecondition, InvalidArgument
from models.checkpoint import tokenizer_digest
from models.config import read_config
from models.weights import read_weights
from orchestrator.request import GenerateRequest
from proposer.heads.families import Frozen, load_head
from proposer.heads.package import MANIFEST, read_manifest
from proposer.heads.published.importing import import_head, read_published
from services.cli import build_app
from services.local import local_orchestrator
from services.settings import AllSettings, load
from tests.contract.tiny_service import EOS, tiny_service_checkpoint
from tests.helpers import published_heads as published
from tests.helpers.fakes import collect
from tests.helpers.generation import GREEDY, tokens_of
from tests.helpers.published_heads import HIDDEN, VOCAB, read, written
from tests.helpers.tiny_models import edit_config

TAPS = ("layer:0", "layer:1", "final_norm")
LAYOUTS = ("medusa", "vllm_medusa", "eagle", "eagle3", "speculators-eagle", "speculators-eagle3")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_service_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(checkpoint: Path) -> Frozen:
    config = read_config(checkpoint)
    return Frozen.of(config, read_weights(checkpoint, config, torch.float32))


def made(layout: str, directory: Path, target: Frozen) -> Path:
    if layout == "eagle":
        return published.eagle(directory, target.embedding)
    if layout.startswith("speculators-"):
        return published.speculators(directory, layout.removeprefix("speculators-"))
    makers = {"medusa": published.medusa, "vllm_medusa": published.vllm_medusa, "eagle3": published.eagle3}
    return makers[layout](directory)


def taps_of(layout: str) -> tuple[str, ...]:
    """The tiny target has too few layers for EAGLE-3's own choice."""
    return TAPS if layout.endswith("eagle3") else ()


def refused(directory: Path, target: Frozen, layout: str) -> DraftproofError:
    with pytest.raises((InvalidArgument, FailedPrecondition, DataLoss)) as error:
        read_published(directory, target, (EOS,), taps=taps_of(layout))
    return error.value


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_tensor_is_needed_has_its_shape_and_no_other_is_there(
    layout: str, target: Frozen, tmp_path: Path
) -> None:
    directory = made(layout, tmp_path / "head", target)
    tensors, config = read(directory)
    # A stored embedding may be left out; without one the target's is read.
    needed = sorted(set(tensors) - {"embed_tokens.weight"})
    assert len(needed) > 4
    for name in needed:
        without = {other: tensor for other, tensor in tensors.items() if other != name}
        error = refused(written(tmp_path / "less", without, config), target, layout)
        assert isinstance(error, InvalidArgument)
        assert name in f"{error.field} {error.message}" or name in ("fc.weight", "token_map"), name
    for name, tensor in tensors.items():
        longer = tensors | {name: torch.cat([tensor, tensor[:1]])}
        assert name in refused(written(tmp_path / "longer", longer, config), target, layout).field
    error = refused(written(tmp_path / "more", tensors | {"extra.weight": torch.zeros(2)}, config), target, layout)
    assert "extra.weight" in error.message
    broken = {name: tensor.clone() for name, tensor in tensors.items()}
    broken[next(name for name in needed if tensors[name].is_floating_point())].view(-1)[0] = float("nan")
    assert "finite" in refused(written(tmp_path / "broken", broken, config), target, layout).message


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("eagle", {"add_para_norm": True}, "add_para_norm"),
    ("eagle", {"num_hidden_layers": 2}, "num_hidden_layers"),
    ("eagle", {"model_type": "qwen3"}, "model_type"),
    ("eagle", {"vocab_size": VOCAB + 1}, "vocab_size"),
    ("eagle", {"hidden_act": "gelu"}, "hidden_act"),
    ("eagle", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_parameters"),
    ("eagle", {"bias": "yes"}, "bias"),
    ("eagle3", {"target_hidden_size": HIDDEN * 2}, "target_hidden_size"),
    ("eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
    ("eagle3", {"draft_vocab_size": 0}, "draft_vocab_size"),
    ("speculators-eagle", {"layernorms": True}, "layernorms"),
    ("speculators-eagle", {"speculators_model_type": "mlp"}, "speculators_model_type"),
    ("speculators-eagle", {"transformer_layer_config": {}}, "num_hidden_layers"),
    ("speculators-eagle3", {"norm_before_fc": True}, "norm_before_fc"),
    ("medusa", {"medusa_num_heads": "3"}, "medusa_num_heads"),
    ("vllm_medusa", {"logit_scale": 0.5}, "logit_scale"),
]


@pytest.mark.parametrize(("layout", "change", "field"), CHANGES, ids=[f"{one[0]}-{one[2]}" for one in CHANGES])
def test_a_configuration_of_another_function_is_refused_by_its_key(
    layout: str, change: dict[str, Any], field: str, target: Frozen, tmp_path: Path
) -> None:
    directory = made(layout, tmp_path, target)
    edit_config(directory, **change)
    assert refused(directory, target, layout).field.endswith(field)


def test_rows_that_are_not_the_targets_and_maps_that_disagree_are_refused(target: Frozen, tmp_path: Path) -> None:
    tensors, config = read(made("eagle", tmp_path / "eagle", target))
    own = tensors | {"lm_head.weight": target.head}
    read_published(written(tmp_path / "same", own, config), target, (EOS,))
    own["lm_head.weight"] = target.head + 1
    assert "lm_head" in refused(written(tmp_path / "other", own, config), target, "eagle").field
    tensors, config = read(made("eagle3", tmp_path / "eagle3", target))
    tensors["t2d"][3] = True
    assert "t2d" in refused(written(tmp_path / "t2d", tensors, config), target, "eagle3").field
    tensors, config = read(made("eagle3", tmp_path / "eagle3", target))
    tensors["d2t"] += 2
    tensors["t2d"] = tensors["t2d"].roll(2)
    error = refused(written(tmp_path / "eos", tensors, config), target, "eagle3")
    assert error.field in ("vocabulary", "published.tensors.t2d")


def test_rows_that_were_fused_are_said_or_follow_from_the_target(target: Frozen, tmp_path: Path) -> None:
    directory = made("eagle3", tmp_path, target)
    for taps, field in (((), "published.taps"), (("layer:0", "layer:1", "layer:9"), "taps")):
        with pytest.raises((InvalidArgument, FailedPrecondition)) as error:
            read_published(directory, target, (EOS,), taps=taps)
        assert error.value.field == field
    edit_config(directory, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 2]})
    with pytest.raises(FailedPrecondition, match="disagree"):
        read_published(directory, target, (EOS,))
    with pytest.raises(InvalidArgument, match="nothing else"):
        read_published(made("medusa", tmp_path / "medusa", target), target, (EOS,), taps=TAPS)


def test_pickles_are_not_opened_and_unknown_directories_say_so(target: Frozen, tmp_path: Path) -> None:
    directory = made("medusa", tmp_path / "head", target)
    (directory / "model.safetensors").rename(directory / "medusa_lm_head.pt")
    error = refused(directory, target, "medusa")
    assert error.field == "published.weights"
    assert "medusa_lm_head.pt" in error.message
    assert refused(written(tmp_path / "other", {"a": torch.zeros(1)}, {}), target, "medusa").field == "published.layout"
    (directory / "config.json").write_text("[1")
    assert refused(directory, target, "medusa").field == "published.config"
    (directory / "config.json").unlink()
    assert refused(directory, target, "medusa").field == "published.config"


def test_a_refused_import_writes_nothing_and_a_package_holds_for_its_base_alone(
    checkpoint: Path, target: Frozen, tmp_path: Path
) -> None:
    directory = made("medusa", tmp_path / "head", target)
    edit_config(directory, medusa_num_heads=4)
    with pytest.raises(InvalidArgument):
        import_head(directory, tmp_path / "out", checkpoint, target_name="tiny", eos_ids=(EOS,))
    assert not (tmp_path / "out").exists()
    edit_config(directory, medusa_num_heads=3)
    import_head(directory, tmp_path / "out", checkpoint, target_name="tiny", eos_ids=(EOS,))
    other = tiny_service_checkpoint(tmp_path)
    edit_config(other, some_note="another")
    with pytest.raises(FailedPrecondition) as error:
        load_head(tmp_path / "out", other, tokenizer_digest=tokenizer_digest(other), eos_ids=(EOS,))
    assert error.value.field == "head.target_digest"


@pytest.mark.parametrize(
    ("layout", "change", "field"),
    [
        ("eagle", {"taps": ["layer:0"]}, "head.taps"),
        ("eagle", {"projection": "own"}, "head.projection"),
        ("eagle", {"decoder": {}}, "head.decoder"),
        ("eagle", {"shape": {"fc_bias": 1}}, "head.shape"),
        ("eagle3", {"projection": "shared"}, "head.projection"),
        ("medusa", {"decoder": {"hidden_size": 32}}, "head.decoder"),
    ],
)
def test_a_changed_manifest_is_refused(
    layout: str, change: dict[str, Any], field: str, checkpoint: Path, target: Frozen, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    directory = made(layout, tmp_path / "head", target)
    import_head(directory, out, checkpoint, target_name="tiny", eos_ids=(EOS,), taps=taps_of(layout))
    manifest = json.loads((out / MANIFEST).read_text())
    (out / MANIFEST).write_text(json.dumps(manifest | change))
    with pytest.raises(InvalidArgument) as error:
        load_head(out, checkpoint, tokenizer_digest=tokenizer_digest(checkpoint), eos_ids=(EOS,), frozen=target)
    assert error.value.field == field


@pytest.mark.parametrize("layout", ["medusa", "eagle", "eagle3"])
async def test_the_command_makes_a_package_that_is_served(
    layout: str, checkpoint: Path, target: Frozen, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["heads", "import", str(made(layout, tmp_path / "head", target)), "--out", str(out)]
    command += ["--base", str(checkpoint)] + (["--taps", ",".join(TAPS)] if layout == "eagle3" else [])
    await asyncio.to_thread(build_app(), command, standalone_mode=False)
    manifest = read_manifest(out)
    assert (out / MANIFEST).is_file()
    assert manifest.training["published"]["layout"] == layout
    assert manifest.family == ("medusa" if layout == "medusa" else f"{layout}-published")
    settings = load(
        AllSettings,
        model=str(checkpoint),
        cache_dir=tmp_path,
        dtype="float32",
        threads=1,
        kv_tokens=2048,
        head=str(out),
        draft_threads=1,
        propose_deadline_ms=60_000,
        budget="fixed",
        default_sources="head",
        inline_sources="",
    )
    request = GenerateRequest(text="The quick brown fox", policy=GREEDY, sources=("head",))
    async with local_orchestrator(settings) as orchestrator:
        plain, _ = await collect(
            orchestrator.generate(GenerateRequest(text=request.text, policy=GREEDY, speculation=False))
        )
        chunks, final = await collect(orchestrator.generate(request))
    assert tokens_of(chunks) == tokens_of(plain)
    assert final.certificate.failures == {}
    assert final.certificate.ledger.proposed_by["head"] > 0
