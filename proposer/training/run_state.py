"""What an interrupted run goes on from: `state.pt`, bound to the run that wrote it.

A state holds the run's identity: what it trains, from which start, on which data (digests of their content), for which
target, with which vocabulary and recipe. Another run with the same directory is refused and told which field differs; it
would otherwise write the first run's weights under its own manifest. Who computes the gradients is no part of it: steps over
Ray are one process's, up to the order of additions.

A state written before identities were kept is adopted where `vocabulary.json`, which such runs left beside it, is the
vocabulary that this run makes of its data, start and options, and refused otherwise; the manifest then says that it was.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from contracts.errors import DataLoss, FailedPrecondition
from models.checkpoint import digest, tokenizer_digest
from proposer.heads.package import vocabulary_digest
from proposer.heads.vocabulary import DraftVocabulary
from proposer.training.loop import Recipe
from proposer.training.prepared import Corpus, Target

STATE = "state.pt"
_EARLIER_VOCABULARY = "vocabulary.json"
_IDENTITY = "identity"
_KEYS = {"network", "optimizer", "step", "tokens", "seconds"}


def identity_of(
    run: str, target: Target, corpus: Corpus, vocabulary: DraftVocabulary, recipe: Recipe, **options: Any
) -> dict[str, Any]:
    """Everything that the weights of a run follow from, as plain JSON values. options: the run's own, by name."""
    found = {
        "run": run,
        **options,
        "target": digest(target.checkpoint),
        "tokenizer": tokenizer_digest(target.checkpoint),
        "eos_ids": list(target.eos_ids),
        "data": list(corpus.digests),
        "vocabulary": vocabulary_digest(vocabulary),
        **{f"recipe.{name}": value for name, value in asdict(recipe).items()},
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


class RunState:
    """The state in `directory`, which is this run's or none yet. adopted: it was written before identities were kept.

    Raises FailedPrecondition (`state.FIELD`) where it belongs to another run, DataLoss where it cannot be read.
    """

    def __init__(self, directory: Path, identity: Mapping[str, Any], vocabulary: DraftVocabulary) -> None:
        self._path = directory / STATE
        self._identity = dict(identity)
        self.loaded = _read(self._path)
        self.adopted = False
        if self.loaded is None:
            return
        written = self.loaded.get(_IDENTITY)
        if written is None:
            self._adopt(directory / _EARLIER_VOCABULARY, vocabulary)
        else:
            _compare(json.loads(written), self._identity, directory)
            self.adopted = bool(self.loaded.get("adopted", False))

    def spent(self, budget: int) -> bool:
        """Whether the run has seen all its tokens."""
        return self.loaded is not None and int(self.loaded["tokens"]) >= budget

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the file by this state, whole."""
        unfinished = self._path.with_suffix(".unfinished")
        torch.save({**state, _IDENTITY: json.dumps(self._identity), "adopted": self.adopted}, unfinished)
        os.replace(unfinished, self._path)

    def _adopt(self, path: Path, vocabulary: DraftVocabulary) -> None:
        try:
            ids = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            ids = None
        if ids != vocabulary.ids.tolist():
            raise FailedPrecondition(
                "state.identity",
                f"{self._path} was written before states named their run, and {path.name} beside it is not this run's: "
                "train into another directory",
            )
        self.adopted = True


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        found = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise DataLoss("state", f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not set(found) >= _KEYS:
        raise DataLoss("state", f"{path} is no state of a training run")
    return found


def _compare(written: Mapping[str, Any], mine: Mapping[str, Any], directory: Path) -> None:
    # In this order, so that the field named is the cause and not what follows from it.
    for name in dict.fromkeys([*mine, *written]):
        if written.get(name) != mine.get(name):
            raise FailedPrecondition(
                f"state.{name}",
                f"{directory} holds a run with {written.get(name)!r}, this one has {mine.get(name)!r}: "
                "train into another directory, or remove its state.pt",
            )
