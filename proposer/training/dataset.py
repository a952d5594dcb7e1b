"""The cached self-distilled data set: shards of conversations with hidden states, and a manifest that says what they are.

    data/
      identity.json     what made it: target, tokenizer, template, decoding policy, seed prompts, taps, disjointness
      00000.safetensors a shard: tokens, lengths, answer starts, hidden rows per tap; names and kinds in its metadata
      contents.json     the shards' SHA-256 (shard_contents.py)
      record.json       how the last `draftproof train data` ended: command, counts over both stages; absent: not recorded

A directory with another identity is refused, never mixed; a shard is written whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from contracts.errors import DataLoss, FailedPrecondition
from contracts.manifest import canonical_bytes, sha256_hex
from proposer.training.generate import Conversation
from proposer.training.shard_contents import ShardContents

# Version of `Dataset.digest`, which manifests name beside it. Those that do not have version 1: over the identity and the
# shards' names and sizes alone.
DIGEST = 2

_IDENTITY = "identity.json"
_RECORD = "record.json"
# Fields that identities have had since some release; a data set without them was made before, and may be continued.
_LATER = ("evaluation",)
_HIDDEN = "hidden:"
_LABELS = "conversations"


class Dataset:
    """The data set in `directory`, opened for more (`identity` given) or for reading.

    Raises FailedPrecondition when `identity` differs from what the directory already holds, and when there is none.
    """

    def __init__(self, directory: Path, identity: Mapping[str, Any] | None = None) -> None:
        self.directory = directory
        path = directory / _IDENTITY
        if identity is not None and not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(identity, indent=1, sort_keys=True), encoding="utf-8")
        if not path.exists():
            raise FailedPrecondition("data", f"{directory} holds no data set; make one with `draftproof train data`")
        self.identity: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self._contents = ShardContents(directory)
        if identity is not None:
            # As JSON gives it back: tuples are lists there.
            asked = json.loads(json.dumps(identity))
            known = {key: self.identity.get(key, asked.get(key)) for key in _LATER if key in asked} | self.identity
            changed = sorted(key for key in {*asked, *known} if asked.get(key) != known.get(key))
            if changed:
                raise FailedPrecondition("data", f"{directory} was made with another {', '.join(changed)}")

    @property
    def digest(self) -> str:
        """SHA-256 hex over the identity and the shards' names and contents: what a trained head cites. Raises DataLoss where
        a shard is not what was recorded."""
        shards = [[path.name, self._contents.of(path)] for path in self.shards()]
        return sha256_hex(canonical_bytes({"digest": DIGEST, "identity": self.identity, "shards": shards}))

    @property
    def record(self) -> dict[str, Any]:
        """What `keep_record` kept; empty where nothing was."""
        path = self.directory / _RECORD
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found

    def keep_record(self, record: Mapping[str, Any]) -> None:
        """Keep how the data set was finished, beside it: no part of its identity or digest."""
        unfinished = self.directory / (_RECORD + ".unfinished")
        unfinished.write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(unfinished, self.directory / _RECORD)

    def shards(self) -> list[Path]:
        return sorted(self.directory.glob("*.safetensors"))

    def names(self) -> set[str]:
        """Conversations already there."""
        found: set[str] = set()
        for path in self.shards():
            with safe_open(path, framework="np") as file:
                found.update(name for name, _ in _labels(file.metadata()))
        return found

    def has(self, number: int) -> bool:
        """Whether the shard of this number is written."""
        return self._shard(number).exists()

    def append(self, conversations: Sequence[Conversation], number: int | None = None) -> None:
        """Write one shard, the next or that of `number`."""
        tensors: dict[str, np.ndarray[Any, Any]] = {
            "tokens": np.concatenate([one.tokens for one in conversations]),
            "lengths": np.array([len(one.tokens) for one in conversations], np.int64),
            "answer_starts": np.array([one.answer_start for one in conversations], np.int64),
        }
        for tap in conversations[0].hidden:
            tensors[_HIDDEN + tap] = np.concatenate([one.hidden[tap] for one in conversations])
        # One entry: the file format keeps several in no fixed order, and a shard's bytes follow from its conversations.
        metadata = {_LABELS: json.dumps([[one.name, one.kind] for one in conversations])}
        path = self._shard(len(self.shards()) if number is None else number)
        unfinished = path.with_suffix(".unfinished")
        save_file(tensors, unfinished, metadata)
        os.replace(unfinished, path)
        self._contents.enter(path)

    def _shard(self, number: int) -> Path:
        return self.directory / f"{number:05d}.safetensors"

    def conversations(self, taps: Sequence[str] | None = None) -> Iterator[Conversation]:
        """All conversations in shard order, with the hidden rows of `taps` (None: all).

        Raises FailedPrecondition when a tap was not recorded, DataLoss when a shard does not add up or is not what was
        recorded.
        """
        for path in self.shards():
            self._contents.of(path)
            yield from _read(path, taps)


def _labels(metadata: Mapping[str, str]) -> list[tuple[str, str]]:
    """(name, kind) of each conversation; data sets of format 1 have two lists."""
    if _LABELS in metadata:
        return [(name, kind) for name, kind in json.loads(metadata[_LABELS])]
    return list(zip(json.loads(metadata["names"]), json.loads(metadata["kinds"]), strict=True))


def _read(path: Path, taps: Sequence[str] | None) -> Iterator[Conversation]:
    with safe_open(path, framework="np") as file:
        labels = _labels(file.metadata())
        lengths, starts = file.get_tensor("lengths"), file.get_tensor("answer_starts")
        tokens = file.get_tensor("tokens")
        recorded = [name.removeprefix(_HIDDEN) for name in file.keys() if name.startswith(_HIDDEN)]  # noqa: SIM118
        missing = set(taps or ()) - set(recorded)
        if missing:
            raise FailedPrecondition("data.taps", f"{path.name} recorded {recorded}, not {sorted(missing)}")
        hidden = {tap: file.get_tensor(_HIDDEN + tap) for tap in (recorded if taps is None else taps)}
    rows = len(tokens) - len(lengths)
    if int(lengths.sum()) != len(tokens) or any(len(value) != rows for value in hidden.values()):
        raise DataLoss("data", f"{path.name}: lengths, tokens and hidden rows do not add up")
    token_end = row_end = 0
    for (name, kind), length, start in zip(labels, lengths.tolist(), starts.tolist(), strict=True):
        token_start, row_start = token_end, row_end
        token_end, row_end = token_start + length, row_start + length - 1
        own = {tap: value[row_start:row_end] for tap, value in hidden.items()}
        yield Conversation(name, kind, tokens[token_start:token_end], start, own)
