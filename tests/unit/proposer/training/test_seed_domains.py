"""Seed prompts over text of others: translations, summaries, questions over passages."""

from __future__ import annotations

from pathlib import Path

import pytest

from proposer.training.seed_domains import (
    DomainTexts,
    domain_stage,
    interleaved,
    read_articles,
    read_retrievals,
    read_sentences,
)
from proposer.training.seed_prompts import SeedTexts, first_stage

SENTENCE = "Der alte Mann ging mit seinem Hund Nummer {} durch den Wald, bis es dunkel wurde."
PARAGRAPH = "In the year Wellington reported that {} people had come. " * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words = ("eins", "zwei", "drei", "vier", "fünf", "sechs")
    (tmp_path / "prosa.txt").write_text(
        "\n\n".join(SENTENCE.format(word) + " Kurz. " + SENTENCE.format(word + "zig") for word in words)
        + "\n\nWert {x} = 3 /* kein Satz, sondern etwas, das wie Code aussieht und lang ist */.",
        encoding="utf-8",
    )
    for name in ("one", "two", "three"):
        text = "\n\n".join(PARAGRAPH.replace("{}", f"{name} {part}") for part in ("first", "second", "third"))
        (tmp_path / f"{name}.md").write_text(text, encoding="utf-8")
    return tmp_path


def test_sentences_are_whole_of_a_sentences_length_and_follow_the_seed(folder: Path) -> None:
    found = read_sentences([folder], 10, seed=3)
    assert found == read_sentences([folder], 10, seed=3) != read_sentences([folder], 10, seed=4)
    assert len(set(found)) == 10
    for one in found:
        assert one[0].isupper()
        assert one[-1] == "."
        assert "{" not in one
    apart = [one for one in found if " , " in one]
    assert apart
    assert len(apart) < len(found)
    assert all(one.endswith(" .") for one in apart)


def test_articles_end_with_a_sentence_and_are_no_longer_than_a_prompt_may_be(folder: Path) -> None:
    found = read_articles([folder], 8, seed=1)
    assert found == read_articles([folder], 8, seed=1)
    assert len(set(found)) == len(found) == 8
    assert all(one.endswith(".") and 75 <= len(one.split()) <= 500 for one in found)


def test_retrievals_are_pieces_of_a_hundred_words(folder: Path) -> None:
    found = read_retrievals([folder], 6, seed=1)
    assert len(found) == 6
    assert all(200 < len(one.split()) <= 500 for one in found)


def test_each_kind_has_as_many_prompts_as_texts_and_is_spread_over_all(folder: Path) -> None:
    sentences = tuple(read_sentences([folder], 12, seed=0))
    passages = tuple(read_retrievals([folder], 3, seed=0))
    prompts = domain_stage(DomainTexts(sentences, tuple(read_articles([folder], 6, seed=0)), passages), seed=0)
    kinds = [one.kind for one in prompts]
    assert (kinds.count("translation"), kinds.count("summary"), kinds.count("rag")) == (12, 6, 3)
    assert {*kinds[:7]} == {*kinds[7:14]} == {*kinds[14:]} == {"translation", "summary", "rag"}
    assert len({one.name for one in prompts}) == len(prompts)
    for one, text in zip([one for one in prompts if one.kind == "translation"], sentences, strict=True):
        assert text in one.messages[0]["content"]
    asked = [one.messages[0]["content"] for one in prompts if one.kind == "rag"]
    assert all(passage in text for passage, text in zip(passages, asked, strict=True))
    assert any("Wellington" in text.removeprefix(passage) for passage, text in zip(passages, asked, strict=True))


def test_without_such_texts_a_data_sets_prompts_are_what_they_were() -> None:
    general = first_stage(SeedTexts(maths=("What is 2 + 2?",)), rounds=3, seed=1)
    assert interleaved(general, domain_stage(DomainTexts(), seed=1)) == general
