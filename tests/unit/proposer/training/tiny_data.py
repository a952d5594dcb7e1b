"""A tiny target with a tokenizer's file, and data sets that it wrote: what whole runs are tested on."""

from __future__ import annotations

from pathlib import Path

from models.load import load_backend
from proposer.training.dataset import Dataset
from proposer.training.generate import Encoded, generate
from proposer.training.prepared import Reports
from proposer.training.seed_prompts import SeedPrompt
from tests.helpers.tiny_models import tiny_checkpoint

EOS = (1,)
TAPS = ("final_norm", "layer:0", "layer:1")
QUIET = Reports(lambda name, done, total: None, lambda figures, budget: None)


def tiny_target(tmp: Path, **options: object) -> Path:
    """Three llama layers, vocabulary 97, tied unless told otherwise."""
    directory = tiny_checkpoint(tmp, layers=3, **{"tie_word_embeddings": True, **options})  # type: ignore[arg-type]
    (directory / "tokenizer.json").write_text("{}", encoding="utf-8")
    return directory


def data_set(directory: Path, checkpoint: Path, *, count: int = 12, seed: int = 0, prefix: str = "p") -> Dataset:
    """`count` (at most 40) conversations of ten to twenty tokens; all prompts begin alike and none is another's, seed 1's
    included."""
    backend = load_backend(checkpoint, implementation="cpu-torch", kv_budget_tokens=4096)
    encoded = [
        Encoded(
            SeedPrompt(f"{prefix}{index}", "qa", ({"role": "user", "content": ""},), 0.0, 12),
            [7, 8, *(2 + (index + 40 * seed + 11 * k) % 90 for k in range(2 + index % 3))],
        )
        for index in range(count)
    ]
    dataset = Dataset(directory, {"seed": seed})
    dataset.append(list(generate(backend, encoded, taps=TAPS, eos_ids=EOS)))
    return dataset
