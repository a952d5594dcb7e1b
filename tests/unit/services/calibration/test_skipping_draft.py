"""The benchmark's stand-in draft is the target without the layers named, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.trees_draft import skipping_draft
from models.config import read_config
from models.load import load_backend
from models.weights import read_weights
from proposer.draft_cache import DraftCache
from tests.helpers.tiny_models import tiny_checkpoint


def test_layers_are_left_out_and_the_rest_is_the_targets(tmp_path: Path) -> None:
    target = tiny_checkpoint(tmp_path, layers=3)
    draft = skipping_draft(target, tmp_path / "draft", {1})
    assert skipping_draft(target, tmp_path / "draft", {1}) == draft
    whole = read_weights(target, read_config(target), torch.float32)
    short = read_weights(draft, read_config(draft), torch.float32)
    assert len(short.layers) == 2
    for mine, theirs in zip(short.layers, (whole.layers[0], whole.layers[2]), strict=True):
        for name, tensor in vars(mine).items():
            if isinstance(tensor, torch.Tensor):
                assert torch.equal(tensor, getattr(theirs, name)), name
    backend = load_backend(draft, kv_budget_tokens=16, implementation="cpu-torch")
    assert DraftCache(backend, 8).follow(np.array([3, 4])).shape == (97,)
