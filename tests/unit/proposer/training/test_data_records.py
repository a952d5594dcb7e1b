"""What a data set says of itself: the content of its shards, and how it came to hold what it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.errors import DataLoss, FailedPrecondition
from contracts.manifest import canonical_bytes, sha256_hex
from models.backend import BackendInfo
from models.load import load_backend
from proposer.training import data as data_module
from proposer.training.blocks import Decoding, Produce, in_process
from proposer.training.data import DataPlan, build
from proposer.training.dataset import Dataset
from proposer.training.disjoint import Guard
from proposer.training.generate import Conversation
from proposer.training.seed_prompts import SeedTexts
from proposer.training.shard_contents import CONTENTS
from tests.helpers.tiny_models import tiny_checkpoint


def conversation(name: str, fill: float = 1.0) -> Conversation:
    rows = np.full((4, 4), fill, np.float16)
    return Conversation(name, "qa", np.arange(5, dtype=np.int32), 2, {"final_norm": rows})


def changed_in_place(shard: Path) -> None:
    """Another hidden row of the same size: what names and sizes cannot show."""
    content = bytearray(shard.read_bytes())
    content[-1] ^= 0x40
    shard.write_bytes(content)


def test_two_data_sets_of_equal_sizes_and_other_contents_have_other_digests(tmp_path: Path) -> None:
    digests = set()
    for name, fill in (("a", 1.0), ("b", 2.0), ("c", 1.0)):
        dataset = Dataset(tmp_path / name, {"seed": 1})
        dataset.append([conversation("one", fill)])
        digests.add(dataset.digest)
    assert len(digests) == 2


def test_a_shard_that_changed_without_changing_its_size_is_data_loss(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path, {"seed": 1})
    dataset.append([conversation("one")])
    dataset.append([conversation("two")])
    changed_in_place(dataset.shards()[1])
    for read in (lambda: Dataset(tmp_path).digest, lambda: list(Dataset(tmp_path).conversations())):
        with pytest.raises(DataLoss) as refusal:
            read()
        assert refusal.value.field == "data.00001.safetensors"


def test_a_data_set_made_before_contents_were_recorded_is_read_and_held_to_its_first_reading(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path, {"seed": 1})
    dataset.append([conversation("one")])
    recorded, digest = (tmp_path / CONTENTS).read_text(), dataset.digest
    (tmp_path / CONTENTS).unlink()
    assert [one.name for one in Dataset(tmp_path).conversations()] == ["one"]
    assert (tmp_path / CONTENTS).read_text() == recorded
    assert Dataset(tmp_path).digest == digest
    changed_in_place(dataset.shards()[0])
    with pytest.raises(DataLoss, match="00000"):
        list(Dataset(tmp_path).conversations())


def test_a_record_of_contents_that_is_none_is_data_loss(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path, {"seed": 1})
    dataset.append([conversation("one")])
    for content in ("[]", "{"):
        (tmp_path / CONTENTS).write_text(content)
        with pytest.raises(DataLoss, match=CONTENTS):
            list(Dataset(tmp_path).conversations())


def test_a_data_set_made_before_evaluation_texts_had_a_digest_may_be_continued(tmp_path: Path) -> None:
    Dataset(tmp_path, {"seed": 1})
    asked = {"seed": 1, "evaluation": "e"}
    assert Dataset(tmp_path, asked).identity == {"seed": 1}
    Dataset(tmp_path / "new", asked)
    with pytest.raises(FailedPrecondition, match="another evaluation"):
        Dataset(tmp_path / "new", asked | {"evaluation": "f"})
    with pytest.raises(FailedPrecondition, match="another evaluation"):
        Dataset(tmp_path / "new", {"seed": 1})


class Letters:
    """Letters are tokens; prompts are cut at 60 so that some are too long and most are not."""

    digest = "letters"

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [2 + ord(letter) % 90 for letter in " ".join(message["content"] for message in messages)][:60]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "how many words can this answer have that an evaluation text has as well"


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Dataset]:
    backend = load_backend(tiny_checkpoint(tmp_path), kv_budget_tokens=4096)
    produce: Produce = in_process(backend, Decoding(("final_norm",), (1,), 0, 4))
    info: BackendInfo = backend.info

    def make(name: str, evaluation: list[str], **plan: Any) -> Dataset:
        return build(
            lambda identity: Dataset(tmp_path / name, identity),
            info,
            produce,
            Letters(),
            SeedTexts(maths=("What is two and two?",)),
            evaluation,
            DataPlan(rounds=2, seed=0, **plan),
            progress=lambda done, planned, tokens: None,
        )

    return make


def test_the_record_counts_what_both_stages_left_out(made: Callable[..., Dataset]) -> None:
    plain = made("plain", [])
    assert plain.record["disjoint"] == {"evaluated": 0, "exact": 0, "shared": 0, "ngram_words": 8}
    second_stage = plain.record["prompts"]["second_stage"]
    # Every prompt of the second stage that shows an answer shares its words with this text; none of the first does.
    leaked = "how many words can this answer have"
    guarded = made("guarded", [leaked + " that"], command="draftproof train data")
    assert guarded.identity["disjoint"]["shared"] == 0
    record = guarded.record
    assert record["disjoint"]["shared"] > 0
    assert record["prompts"]["second_stage"] + record["disjoint"]["shared"] == second_stage
    assert record["prompts"]["first_stage"] == plain.record["prompts"]["first_stage"]
    assert record["evaluation"] == guarded.identity["evaluation"] == Guard([leaked + " that"]).digest
    assert record["command"] == "draftproof train data"
    assert record["conversations"] == len(guarded.names())


def test_prompts_that_are_too_long_are_counted(made: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "_MAX_PROMPT_TOKENS", 59)
    record = made("short", []).record
    prompts = record["prompts"]
    assert prompts["too_long"] > 0
    assert prompts["first_stage"] + prompts["second_stage"] - prompts["too_long"] == record["conversations"]
    assert record["max_prompt_tokens"] == 59


def test_the_record_is_no_part_of_the_digest_and_an_absent_one_is_empty(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path, {"seed": 1})
    dataset.append([conversation("one")])
    assert dataset.record == {}
    before = dataset.digest
    dataset.keep_record({"command": "c"})
    assert Dataset(tmp_path).record == {"command": "c"}
    assert Dataset(tmp_path).digest == before
    shards = [["00000.safetensors", json.loads((tmp_path / CONTENTS).read_text())["00000.safetensors"]]]
    assert before == sha256_hex(canonical_bytes({"digest": 2, "identity": {"seed": 1}, "shards": shards}))
