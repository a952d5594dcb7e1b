"""Packages are read strictly: whatever does not fit is a typed error, never a default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument
from proposer.heads import package
from proposer.heads.families import package_shapes, tensor_shapes
from proposer.heads.vocabulary import DraftVocabulary
from tests.unit.proposer.heads.tiny_heads import CONFIG, EOS, FAMILIES, VOCAB, VOCABULARY, frozen, manifest_of, network

DIGESTS: dict[str, Any] = {"target_digest": "t" * 64, "tokenizer_digest": "k" * 64, "eos_ids": (EOS,)}


def saved(directory: Path, family: str = "eagle") -> dict[str, tuple[int, ...]]:
    made = network(family)
    package.save(directory, manifest_of(family), dict(made.named_parameters()), VOCABULARY)
    return dict(tensor_shapes(made))


def tampered(directory: Path, change) -> None:
    """Change the stored tensors and let the manifest agree with the new file."""
    tensors = load_file(directory / package.WEIGHTS)
    change(tensors)
    save_file(tensors, directory / package.WEIGHTS)
    edit(directory, weights_sha256=package._sha256(directory / package.WEIGHTS))


def edit(directory: Path, **changes: object) -> None:
    path = directory / package.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_package_comes_back_as_it_was_saved(tmp_path: Path, family: str) -> None:
    shapes = saved(tmp_path, family)
    loaded = package.load(tmp_path, shapes, **DIGESTS)
    made = dict(network(family).named_parameters())
    assert set(loaded.tensors) == set(made)
    for name, value in made.items():
        assert torch.equal(loaded.tensors[name], value.detach().bfloat16().float())
    assert np.array_equal(loaded.vocabulary.ids, VOCABULARY.ids)
    assert loaded.manifest.vocabulary_sha256 == package.vocabulary_digest(VOCABULARY)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_missing_tensor_is_an_error(tmp_path: Path, family: str) -> None:
    shapes = saved(tmp_path, family)
    for name in shapes:
        saved(tmp_path, family)
        tampered(tmp_path, lambda tensors, name=name: tensors.pop(name))
        with pytest.raises(InvalidArgument, match=f"lacks {name}"):
            package.load(tmp_path, shapes, **DIGESTS)


def test_left_over_and_misshapen_tensors_are_errors(tmp_path: Path) -> None:
    shapes = saved(tmp_path)
    tampered(tmp_path, lambda tensors: tensors.update(extra=torch.zeros(2)))
    with pytest.raises(InvalidArgument, match="extra"):
        package.load(tmp_path, shapes, **DIGESTS)
    saved(tmp_path)
    tampered(tmp_path, lambda tensors: tensors.update(norm=tensors["norm"][:-1].contiguous()))
    with pytest.raises(InvalidArgument, match="norm"):
        package.load(tmp_path, shapes, **DIGESTS)


def test_own_and_shared_projections_are_two_formats(tmp_path: Path) -> None:
    own = saved(tmp_path, "medusa-own")
    with pytest.raises(InvalidArgument, match="projection"):
        package.load(tmp_path, tensor_shapes(network("medusa")), **DIGESTS)
    saved(tmp_path, "medusa")
    with pytest.raises(InvalidArgument, match="lacks projection"):
        package.load(tmp_path, own, **DIGESTS)


@pytest.mark.parametrize(
    ("name", "other"), [("target_digest", "x" * 64), ("tokenizer_digest", "x" * 64), ("eos_ids", (EOS, 3))]
)
def test_another_base_tokenizer_or_end_of_sequence_is_refused(tmp_path: Path, name: str, other: object) -> None:
    shapes = saved(tmp_path)
    with pytest.raises(FailedPrecondition) as refusal:
        package.load(tmp_path, shapes, **(DIGESTS | {name: other}))
    assert refusal.value.field == f"head.{name}"


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    shapes = saved(tmp_path)
    ids = torch.from_numpy(VOCABULARY.ids.astype(np.int32))

    def moved(tensors: dict[str, torch.Tensor]) -> None:
        changed = ids.clone()
        changed[2] = 2
        tensors["vocabulary"] = changed

    tampered(tmp_path, moved)
    with pytest.raises(InvalidArgument, match="not the one the manifest names"):
        package.load(tmp_path, shapes, **DIGESTS)
    saved(tmp_path)
    tampered(tmp_path, lambda tensors: tensors.pop("vocabulary"))
    with pytest.raises(InvalidArgument, match="no id list"):
        package.load(tmp_path, shapes, **DIGESTS)


def test_a_file_that_changed_or_was_cut_is_data_loss(tmp_path: Path) -> None:
    shapes = saved(tmp_path)
    path = tmp_path / package.WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataLoss):
        package.load(tmp_path, shapes, **DIGESTS)
    saved(tmp_path)
    path.write_bytes(path.read_bytes()[:-8])
    edit(tmp_path, weights_sha256=package._sha256(path))
    with pytest.raises(DataLoss):
        package.load(tmp_path, shapes, **DIGESTS)


def test_manifests_are_strict(tmp_path: Path) -> None:
    saved(tmp_path)
    edit(tmp_path, surprise=1)
    with pytest.raises(InvalidArgument, match="surprise"):
        package.read_manifest(tmp_path)
    saved(tmp_path)
    raw = json.loads((tmp_path / package.MANIFEST).read_text())
    del raw["taps"]
    (tmp_path / package.MANIFEST).write_text(json.dumps(raw))
    with pytest.raises(InvalidArgument, match="taps"):
        package.read_manifest(tmp_path)
    for content in ("[]", "null", '"eagle"', "{", "\udc80"):
        (tmp_path / package.MANIFEST).write_bytes(content.encode(errors="surrogateescape"))
        with pytest.raises(InvalidArgument, match=r"manifest\.json"):
            package.read_manifest(tmp_path)
    (tmp_path / package.MANIFEST).unlink()
    with pytest.raises(InvalidArgument, match=r"manifest\.json"):
        package.read_manifest(tmp_path)


def medusa2(directory: Path, *, rank_in_shape: bool = True) -> tuple[Mapping[str, tuple[int, ...]], dict[str, Any]]:
    """Saves a Medusa-2 package of rank 2; what it holds, and its tensors."""
    shape, training = ({"blocks": 1, "rank": 2}, {}) if rank_in_shape else ({"blocks": 1}, {"rank": 2})
    manifest = manifest_of("medusa2", shape=shape, training=training)
    shapes = package_shapes(manifest, frozen())
    adapter = {name: torch.ones(*size) for name, size in shapes.items() if name.startswith(package.ADAPTER)}
    tensors = dict(network("medusa").named_parameters()) | adapter
    package.save(directory, manifest, tensors, VOCABULARY)
    return shapes, tensors


def test_a_medusa_2_head_without_its_backbone_is_refused(tmp_path: Path) -> None:
    shapes, tensors = medusa2(tmp_path)
    adapter = {name for name in shapes if name.startswith(package.ADAPTER)}
    assert len(adapter) == 2 * 2 * CONFIG.num_layers
    assert set(package.load(tmp_path, shapes, **DIGESTS).adapter) == adapter
    alone = {name: value for name, value in tensors.items() if name not in adapter}
    with pytest.raises(InvalidArgument, match="adapter"):
        package.save(tmp_path, manifest_of("medusa2"), alone, VOCABULARY)
    tampered(tmp_path, lambda stored: [stored.pop(name) for name in adapter])
    with pytest.raises(InvalidArgument, match="adapter"):
        package.load(tmp_path, shapes, **DIGESTS)


def test_an_adapters_tensors_are_read_as_strictly_as_a_heads(tmp_path: Path) -> None:
    for change, message in (
        (lambda stored: stored.pop("adapter.b.1.out"), r"lacks adapter\.b\.1\.out"),
        (lambda stored: stored.update({"adapter.a.9.qkv": torch.ones(2, 32)}), r"adapter\.a\.9\.qkv"),
        (lambda stored: stored.update({"adapter.a.0.qkv": torch.ones(3, 32)}), r"adapter\.a\.0\.qkv"),
    ):
        shapes, _ = medusa2(tmp_path)
        tampered(tmp_path, change)
        with pytest.raises(InvalidArgument, match=message):
            package.load(tmp_path, shapes, **DIGESTS)


def test_medusa_2_packages_without_a_rank_in_their_shape_have_it_in_their_training(tmp_path: Path) -> None:
    assert medusa2(tmp_path, rank_in_shape=False)[0] == medusa2(tmp_path)[0]
    without = manifest_of("medusa2")
    with pytest.raises(InvalidArgument, match="rank"):
        package_shapes(without, frozen())


def test_an_adapter_does_not_belong_to_a_head_over_the_unchanged_base(tmp_path: Path) -> None:
    shapes = saved(tmp_path)
    tampered(tmp_path, lambda tensors: tensors.update({"adapter.x": torch.ones(1)}))
    with pytest.raises(InvalidArgument, match="unchanged"):
        package.load(tmp_path, shapes, **DIGESTS)


def test_half_a_package_has_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)

    def cut_off(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(package, "save_file", cut_off)
    with pytest.raises(OSError, match="space"):
        saved(tmp_path)
    with pytest.raises(InvalidArgument, match=r"manifest\.json"):
        package.read_manifest(tmp_path)


def test_a_vocabulary_without_eos_out_of_order_or_out_of_range_is_refused() -> None:
    for ids, message in (
        ([0, 3, 4], "end-of-sequence"),
        ([3, 1], "ascending"),
        ([1, 1], "ascending"),
        ([1, VOCAB], "within"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            DraftVocabulary(np.array(ids), target_size=VOCAB, eos_ids=(EOS,))
