"""A manifest says nothing that no head has: every field is checked, those included that no tensor's shape shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contracts.errors import InvalidArgument
from proposer.heads import package
from proposer.heads.families import network_of
from proposer.heads.manifest_checks import MAX_DEPTH
from tests.unit.proposer.heads.tiny_heads import FAMILIES, VOCAB, VOCABULARY, frozen, manifest_of, network

# family, field as JSON has it, value, the field blamed
WRONG = [
    ("eagle", "format", 2, "head.format"),
    ("eagle", "format", "1", "head.format"),
    ("eagle", "family", "oracle", "head.family"),
    ("eagle", "family", None, "head.family"),
    ("medusa", "projection", "none", "head.projection"),
    ("hydra", "projection", "own", "head.projection"),
    ("clover", "projection", "own", "head.projection"),
    ("eagle", "projection", "own", "head.projection"),
    ("eagle", "offsets", [1], "head.offsets"),
    ("eagle", "offsets", [2, 3], "head.offsets"),
    ("medusa", "offsets", [1, 2], "head.offsets"),
    ("medusa", "offsets", [2, 3], "head.offsets"),
    ("medusa", "offsets", [2, 4, 3], "head.offsets"),
    ("medusa", "offsets", "234", "head.offsets"),
    ("medusa", "offsets", [2, 3, "4"], "head.offsets"),
    ("medusa", "depth", 0, "head.depth"),
    ("clover", "depth", MAX_DEPTH + 1, "head.depth"),
    ("eagle", "depth", 3, "head.depth"),
    ("medusa", "depth", "3", "head.depth"),
    ("medusa", "depth", True, "head.depth"),
    ("hydra", "taps", ["layer:1"], "head.taps"),
    ("medusa", "taps", ["final_norm", "layer:1"], "head.taps"),
    ("eagle", "taps", ["layer:1"], "head.taps"),
    ("eagle3", "taps", [], "head.taps"),
    ("eagle3", "taps", ["layer:1", "layer:1"], "head.taps"),
    ("eagle3", "taps", ["layer:-1"], "head.taps"),
    ("eagle3", "taps", [1], "head.taps"),
    ("eagle", "shape", None, "head.shape"),
    ("eagle", "shape", [], "head.shape"),
    ("eagle", "shape", {"inner": "40"}, "head.shape"),
    ("eagle", "shape", {"inner": 0}, "head.shape.inner"),
    ("eagle", "shape", {"inner": 10**12}, "head.shape.inner"),
    ("eagle", "shape", {"blocks": 1}, "head.shape"),
    ("medusa", "shape", {}, "head.shape"),
    ("medusa", "shape", {"blocks": 1, "rank": 2}, "head.shape"),
    ("hydra", "shape", {"blocks": 1, "prefix": 1}, "head.shape.prefix"),
    ("hydra++", "shape", {"blocks": 1, "prefix": 0}, "head.shape.prefix"),
    ("eagle", "vocabulary_size", -3, "head.vocabulary_size"),
    ("eagle", "vocabulary_size", VOCAB + 1, "head.vocabulary_size"),
    ("eagle", "vocabulary_size", 13.0, "head.vocabulary_size"),
    ("eagle", "target_vocabulary_size", None, "head.target_vocabulary_size"),
    ("eagle", "eos_ids", [VOCAB], "head.eos_ids"),
    ("eagle", "eos_ids", [1, 1], "head.eos_ids"),
    ("eagle", "eos_ids", 1, "head.eos_ids"),
    ("eagle", "target", 5, "head.target"),
    ("eagle", "target_digest", "", "head.target_digest"),
    ("eagle", "tokenizer_digest", ["k"], "head.tokenizer_digest"),
    ("eagle", "weights_sha256", None, "head.weights_sha256"),
    ("eagle", "vocabulary_sha256", 3, "head.vocabulary_sha256"),
    ("eagle", "training", [], "head.training"),
]


@pytest.mark.parametrize(("family", "field", "value", "blamed"), WRONG)
def test_a_field_that_no_such_head_has_is_a_typed_error_that_names_it(
    tmp_path: Path, family: str, field: str, value: object, blamed: str
) -> None:
    package.save(tmp_path, manifest_of(family), dict(network(family).named_parameters()), VOCABULARY)
    path = tmp_path / package.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(InvalidArgument) as refusal:
        package.read_manifest(tmp_path)
    assert refusal.value.field == blamed


@pytest.mark.parametrize("family", FAMILIES)
def test_a_manifest_comes_back_from_its_file(tmp_path: Path, family: str) -> None:
    package.save(tmp_path, manifest_of(family), dict(network(family).named_parameters()), VOCABULARY)
    read = package.read_manifest(tmp_path)
    assert manifest_of(family, weights_sha256=read.weights_sha256, vocabulary_sha256=read.vocabulary_sha256) == read


def test_a_tap_of_a_layer_that_the_target_does_not_have_is_refused() -> None:
    manifest = manifest_of("eagle3", taps=("layer:0", "layer:3", "final_norm"))
    with pytest.raises(InvalidArgument, match=r"head\.taps: 'layer:3', the target has layers 0 to 2"):
        network_of(manifest, frozen(), VOCABULARY)
