"""A Medusa-2 package in the table of drafters: its own target, bound and loaded strictly, and its distance from the base."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import adapted_target
from benchmarks.adapted_target import AdaptedTarget, Distance
from benchmarks.head_trajectories import Trajectory
from contracts.errors import FailedPrecondition, InvalidArgument
from models.backend import RowBlock
from models.checkpoint import tokenizer_digest
from models.load import load_backend
from proposer.training.loop import Recipe
from proposer.training.medusa2 import Medusa2Recipe
from proposer.training.recipes import recipe_of
from proposer.training.run import HeadPlan, train_head
from proposer.training.run_medusa2 import HEAD, Medusa2Plan, train_medusa2
from tests.unit.proposer.training.tiny_data import EOS, QUIET, data_set, tiny_target

# Fast enough for the adapter to change what the target says.
RECIPE = Recipe(token_budget=400, batch_tokens=40, learning_rate=0.1)
TOLD = {"target_name": "tiny", "eos_ids": EOS, "command": "draftproof train", "reports": QUIET}
NODES = {"chain": 3, "tree": 6, "wide": 9}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target, data, medusa2 (a package) and medusa (heads of the base)."""
    root = tmp_path_factory.mktemp("adapted")
    target = tiny_target(root, name="target")
    data = [data_set(root / "data", target, count=30)]
    plan = HeadPlan(recipe_of("medusa", depth=2), 60, RECIPE)
    joint = Medusa2Recipe(warm_up=2, backbone_rate=0.9)
    train_medusa2(Medusa2Plan(plan, joint, 2), data, target, root / "medusa2", **TOLD)
    train_head(plan, data, target, root / "medusa", **TOLD)
    return root


def adapted(root: Path, name: str = "medusa2") -> AdaptedTarget:
    target = root / "target"
    return AdaptedTarget.of(root / name, target, root, tokenizer_digest=tokenizer_digest(target), eos_ids=EOS)


def texts(root: Path, backend) -> list[Trajectory]:
    """What `backend` writes greedily after three prompts, with its rows."""
    found = []
    for index in range(3):
        prompt = [7, 8, 20 + index, 40 - index]
        slot, tokens, hidden = backend.allocate(64), list(prompt), []
        fresh = np.array(prompt)
        while len(tokens) < 16:
            start = len(tokens) - len(fresh)
            rows = np.arange(len(fresh))
            done = backend.forward([RowBlock(slot, fresh, start + rows, rows - 1)], taps=("final_norm",))
            backend.commit(slot, rows.tolist())
            hidden.append(done.hidden["final_norm"][0].clone())
            fresh = np.array([int(done.logits[0][-1].argmax())])
            tokens.append(int(fresh[0]))
        backend.release(slot)
        found.append(Trajectory(f"t{index}", "qa", torch.tensor(tokens), 4, {"final_norm": torch.cat(hidden)}))
    return found


def test_its_heads_are_rows_beside_lookup_along_its_own_targets_texts(root: Path) -> None:
    own = adapted(root)
    rows = list(own.rows(texts(root, own.target), NODES))
    assert {(row.name, row.shape) for row in rows} == {
        ("medusa2_prompt_lookup", "chain"),
        *(("medusa2", shape) for shape in NODES),
    }
    for row in rows:
        assert row.outcome.total.tokens == 3 * 12
        if row.name == "medusa2":
            assert "medusa2, its own target" in row.note
            assert "too little trained" in row.note


def test_only_a_medusa_2_package_has_a_target_of_its_own(root: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"head\.family"):
        adapted(root, "medusa")


def test_a_bound_head_of_another_target_is_refused(root: Path, tmp_path: Path) -> None:
    """What was merged before is read again, and no more trusted than then."""
    own = adapted(root)
    bound = next(root.glob("benchmark-medusa2-*"))
    manifest = bound / HEAD / "manifest.json"
    written = manifest.read_text()
    try:
        manifest.write_text(written.replace(own.head.manifest.target_digest, "0" * 64))
        with pytest.raises(FailedPrecondition, match="target_digest"):
            adapted(root)
    finally:
        manifest.write_text(written)


def test_distance_is_none_to_itself_and_the_kl_divergence_to_another(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In passes of five rows, so that answers begin and end within one; by hand from whole passes of other kernels."""
    monkeypatch.setattr(adapted_target, "_CHUNK", 5)
    base = load_backend(root / "target", dtype="bfloat16", kv_budget_tokens=256, threads=1)
    answers = texts(root, base)
    itself = Distance.over(base, base, answers)
    assert itself.same_choice == 1.0
    assert itself.perplexity == itself.base_perplexity
    other = adapted(root).target
    found = Distance.over(base, other, answers)
    assert found.same_choice < 1.0
    assert found.base_perplexity == itself.perplexity < found.perplexity
    losses, same = [], []
    for one in answers:
        tokens, rows = one.tokens.numpy(), np.arange(len(one.tokens))
        laws = [
            backend.forward([RowBlock(backend.allocate(32), tokens, rows, rows - 1)]).logits[0]
            for backend in (base, other)
        ]
        losses += [-torch.log_softmax(laws[1], 1)[row - 1, tokens[row]].item() for row in range(4, len(tokens))]
        same += (laws[0].argmax(1) == laws[1].argmax(1))[3:-1].tolist()
    assert found.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)
    assert found.same_choice == pytest.approx(sum(same) / len(same))
