"""Seed prompts, disjointness, generation and shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from contracts.errors import DataLoss, FailedPrecondition
from models.backend import RowBlock
from models.load import load_backend
from proposer.training import blocks
from proposer.training.blocks import Decoding, in_process
from proposer.training.data import DataPlan, build
from proposer.training.dataset import Dataset
from proposer.training.disjoint import Guard
from proposer.training.generate import Conversation, Encoded, generate
from proposer.training.seed_prompts import (
    SeedPrompt,
    SeedTexts,
    first_stage,
    read_functions,
    read_passages,
    second_stage,
)
from proposer.training.shard_contents import CONTENTS
from tests.helpers.tiny_models import tiny_checkpoint

EOS = (1,)


class Letters:
    """A tokenizer of letters: enough to make prompts of different lengths."""

    digest = "letters"

    def encode_chat(self, messages):
        text = " ".join(message["content"] for message in messages)
        return [2 + ord(letter) % 90 for letter in text][:20]

    def decode(self, token_ids):
        return " ".join(f"w{token}" for token in token_ids)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"))


def prompt(name: str, temperature: float = 0.0, max_new: int = 6) -> SeedPrompt:
    return SeedPrompt(name, "qa", ({"role": "user", "content": name},), temperature, max_new)


def encoded(count: int) -> list[Encoded]:
    lengths = [3 + (7 * index) % 11 for index in range(count)]
    return [
        Encoded(prompt(f"p{index}", float(index % 2)), [2 + (index * 5 + k) % 90 for k in range(length)])
        for index, length in enumerate(lengths)
    ]


def by_name(conversations) -> dict[str, Conversation]:
    return {one.name: one for one in conversations}


def same(left: Conversation, right: Conversation) -> bool:
    return np.array_equal(left.tokens, right.tokens) and all(
        np.array_equal(left.hidden[tap], right.hidden[tap]) for tap in left.hidden
    )


def test_a_conversation_does_not_depend_on_its_neighbours(checkpoint: Path) -> None:
    backend = load_backend(checkpoint, kv_budget_tokens=2048)
    options = {"taps": ("final_norm", "layer:0"), "eos_ids": EOS, "seed": 7}
    together = by_name(generate(backend, encoded(9), width=5, **options))
    for one in encoded(9):
        (alone,) = generate(backend, [one], width=1, **options)
        assert same(alone, together[alone.name])


def test_rows_are_the_targets_own_and_the_last_token_has_none(checkpoint: Path) -> None:
    backend = load_backend(checkpoint, kv_budget_tokens=2048)
    for one in generate(backend, encoded(4), taps=("final_norm",), eos_ids=EOS, width=2, seed=7):
        count = len(one.tokens)
        assert len(one.hidden["final_norm"]) == count - 1
        slot = backend.allocate(count)
        rows = np.arange(count - 1)
        result = backend.forward(
            [RowBlock(slot, one.tokens[:-1].astype(np.int64), rows, rows - 1)], taps=("final_norm",)
        )
        assert np.allclose(one.hidden["final_norm"], result.hidden["final_norm"][0].numpy(), atol=2e-2)
        greedy = result.logits[0].argmax(dim=1).numpy()
        if int(one.name[1:]) % 2 == 0:
            assert np.array_equal(one.tokens[one.answer_start :], greedy[one.answer_start - 1 :])
        backend.release(slot)


def test_sampled_conversations_follow_the_seed(checkpoint: Path) -> None:
    backend = load_backend(checkpoint, kv_budget_tokens=2048)
    texts = [
        by_name(generate(backend, encoded(6), taps=("final_norm",), eos_ids=EOS, seed=seed))["p1"].tokens.tolist()
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_an_interrupted_data_set_is_finished_as_if_it_had_not_been(
    checkpoint: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_PROMPTS", 4)
    backend = load_backend(checkpoint, kv_budget_tokens=4096)
    plan = DataPlan(rounds=3, seed=1)

    def made(directory: Path, stop_after: int | None = None, width: int = 4) -> Dataset:
        seen = 0

        def progress(done: int, planned: int, tokens: int) -> None:
            nonlocal seen
            seen += 1
            if seen == stop_after:
                raise KeyboardInterrupt

        return build(
            lambda identity: Dataset(directory, identity),
            backend.info,
            in_process(backend, Decoding(plan.taps, EOS, plan.seed, width)),
            Letters(),
            SeedTexts(maths=("What is 2 + 2?",)),
            ["an evaluation prompt"],
            plan,
            progress=progress,
        )

    whole = made(tmp_path / "whole", width=3)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "broken", stop_after=10)
    assert 0 < len(Dataset(tmp_path / "broken").shards()) < len(whole.shards())
    mended = made(tmp_path / "broken")
    assert mended.digest == whole.digest
    assert [path.read_bytes() for path in mended.shards()] == [path.read_bytes() for path in whole.shards()]
    names = [one.name for one in whole.conversations(())]
    assert names[:5] == ["article/0", "qa/0", "qa/1", "writing/0", "explain/0"]


def conversation(name: str, length: int = 5) -> Conversation:
    return Conversation(
        name, "qa", np.arange(length, dtype=np.int32), 2, {"final_norm": np.ones((length - 1, 4), np.float16)}
    )


def test_a_data_set_of_another_identity_is_never_mixed(tmp_path: Path) -> None:
    Dataset(tmp_path, {"seed": 1}).append([conversation("a")])
    with pytest.raises(FailedPrecondition, match="seed"):
        Dataset(tmp_path, {"seed": 2})
    with pytest.raises(FailedPrecondition, match="no data set"):
        Dataset(tmp_path / "nothing")
    before = Dataset(tmp_path).digest
    Dataset(tmp_path).append([conversation("b", 9)])
    assert Dataset(tmp_path).names() == {"a", "b"}
    assert Dataset(tmp_path).digest != before


def test_data_sets_of_the_first_format_are_still_read(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path, {"seed": 1})
    dataset.append([conversation("a"), conversation("b", 7)])
    (path,) = dataset.shards()
    with safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {"names": '["a", "b"]', "kinds": '["qa", "maths"]'})
    (tmp_path / CONTENTS).unlink()
    assert [(one.name, one.kind) for one in dataset.conversations()] == [("a", "qa"), ("b", "maths")]
    assert dataset.names() == {"a", "b"}


def test_shards_that_do_not_add_up_and_absent_taps_are_errors(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path, {"seed": 1})
    dataset.append([conversation("a"), conversation("b", 7)])
    assert [len(one.tokens) for one in dataset.conversations()] == [5, 7]
    with pytest.raises(FailedPrecondition, match="layer:9"):
        list(dataset.conversations(["layer:9"]))
    (path,) = dataset.shards()
    with safe_open(path, framework="np") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    save_file(tensors | {"tokens": tensors["tokens"][:-1]}, path, metadata)
    (tmp_path / CONTENTS).unlink()
    with pytest.raises(DataLoss, match="add up"):
        list(dataset.conversations())


def test_seed_prompts_follow_from_the_seed_and_are_balanced() -> None:
    texts = SeedTexts(maths=["m"] * 20, passages=["p. " * 300] * 20, functions=["def f(): pass"] * 20)
    prompts = first_stage(texts, rounds=12, seed=3)
    assert prompts == first_stage(texts, rounds=12, seed=3) != first_stage(texts, rounds=12, seed=4)
    assert first_stage(texts, rounds=6, seed=3) == prompts[: len(first_stage(texts, rounds=6, seed=3))]
    assert len({one.name for one in prompts}) == len(prompts)
    assert {one.kind for one in prompts} >= {
        "qa",
        "chat",
        "maths",
        "translation",
        "coding",
        "edit",
        "summary",
        "article",
    }
    second = second_stage([(one, "A word About Paris. " * 20) for one in prompts], seed=3)
    assert {one.kind for one in second} == {"summary", "rag", "extraction", "followup"}
    assert not {one.name for one in second} & {one.name for one in prompts}


def test_the_guard_counts_exact_and_shared_texts() -> None:
    guard = Guard(["What is the capital of France and who founded it first?", "Short one"], ngram_words=6)
    assert not guard.admits("what is the CAPITAL of France, and who founded it first")
    assert not guard.admits("Tell me: what is the capital of France today?")
    assert not guard.admits("short one.")
    assert guard.admits("what is the capital")
    same, other = Guard(["short ONE!", "what is the capital of france and who founded it first"]), Guard(["one", "two"])
    assert guard.digest == same.digest != other.digest
    report = guard.report()
    assert (report.evaluated, report.exact, report.shared) == (2, 2, 1)


def test_overlapping_seed_prompts_are_left_out_of_the_data(checkpoint: Path, tmp_path: Path) -> None:
    leaked = "How many apples do three friends have if each has four?"
    backend = load_backend(checkpoint, kv_budget_tokens=4096)
    dataset = build(
        lambda identity: Dataset(tmp_path / "d", identity),
        backend.info,
        in_process(backend, Decoding(("final_norm",), EOS, 0, 4)),
        Letters(),
        SeedTexts(maths=(leaked, "What is two and two?")),
        [leaked],
        DataPlan(rounds=1, seed=0),
        progress=lambda done, planned, tokens: None,
    )
    assert "maths/0" not in dataset.names()
    assert "maths/1" in dataset.names()
    assert dataset.identity["disjoint"]["exact"] + dataset.identity["disjoint"]["shared"] == 1
    assert dataset.identity["evaluation"] == Guard([leaked]).digest


def test_passages_and_functions_come_from_files(tmp_path: Path) -> None:
    prose = "This is a sentence about nothing in particular. " * 20
    (tmp_path / "a.md").write_text(f"# Title\n\n{prose}\n\n| a | b |\n")
    (tmp_path / "b.txt").write_text("too short")
    (tmp_path / "c.py").write_text("def f(x):\n" + "    x = x + 1\n" * 30 + "    return x\n")
    (tmp_path / "d.py").write_text("def broken(:\n")
    assert read_passages([tmp_path], 9, seed=0) == [prose.strip()[:2200]]
    (function,) = read_functions([tmp_path], 9, seed=0)
    assert function.startswith("def f(x):")
    assert replace(prompt("a"), name="b").name == "b"
