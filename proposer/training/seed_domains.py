"""Seed prompts over text that others wrote: foreign sentences to translate, articles to summarise, passages to answer from.

Their counts are those of the texts that are read, so that each kind has as many as it needs beside the eight of
`seed_prompts`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from proposer.training import seed_words as words
from proposer.training.seed_prompts import Maker, SeedPrompt, read_text

_SENTENCE_WORDS = (10, 35)
# Words of an article: longer ones would be prompts of more tokens than data generation takes.
_ARTICLE_WORDS = (150, 500)
_PASSAGE_WORDS = 100
_PASSAGES = 5
# Capitalised words within a sentence: what a question can be about.
_TERM = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+(?: [A-Z][a-z]+)*")


@dataclass(frozen=True)
class DomainTexts:
    """sentences: to translate. articles: to summarise. passages: to answer a question from, several pieces in each."""

    sentences: Sequence[str] = ()
    articles: Sequence[str] = ()
    passages: Sequence[str] = ()


def domain_stage(texts: DomainTexts, *, seed: int) -> list[SeedPrompt]:
    """A prompt for each text, the kinds spread evenly."""
    make = Maker(seed + 2)
    translations = [
        make.prompt(
            f"foreign/{index}", "translation", make.pick(words.TRANSLATE_FOREIGN).replace("{german}", text), 128
        )
        for index, text in enumerate(texts.sentences)
    ]
    summaries = [
        make.prompt(f"outline/{index}", "summary", make.pick(words.SUMMARISE).replace("{passage}", text))
        for index, text in enumerate(texts.articles)
    ]
    retrievals = [
        make.prompt(f"retrieval/{index}", "rag", _asked(make, text)) for index, text in enumerate(texts.passages)
    ]
    return interleaved(translations, summaries, retrievals)


def _asked(make: Maker, passage: str) -> str:
    terms = _TERM.findall(passage) or [make.pick(words.TOPICS)]
    question = make.pick(words.RETRIEVAL_QUESTIONS).format(topic=make.pick(terms))
    return make.pick(words.RAG).replace("{passage}", passage).replace("{question}", question)


def interleaved(*kinds: Sequence[SeedPrompt]) -> list[SeedPrompt]:
    """All prompts, each kind in its order and spread over the whole, so that any cut is balanced."""
    placed = [((index + 0.5) / len(kind), one) for kind in kinds for index, one in enumerate(kind)]
    return [one for _, one in sorted(placed, key=lambda pair: pair[0])]


def read_sentences(roots: Iterable[Path], count: int, *, seed: int) -> list[str]:
    """`count` sentences of 10 to 35 words from the prose below `roots`, half of them with their punctuation set apart, as
    translation corpora have it."""
    shortest, longest = _SENTENCE_WORDS
    found = {
        sentence: None
        for text in _texts(roots)
        for paragraph in _paragraphs(text)
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-ZÄÖÜ„])", paragraph)
        if shortest <= len(sentence.split()) <= longest and _is_sentence(sentence)
    }
    order = random.Random(seed)
    chosen = list(found)
    order.shuffle(chosen)
    return [_set_apart(one) if order.random() < 0.5 else one for one in chosen[:count]]


def read_articles(roots: Iterable[Path], count: int, *, seed: int) -> list[str]:
    """`count` stretches of up to 150 to 500 words, whole sentences, of files below `roots` drawn at random: each begins with
    a paragraph of its file's first half."""
    order = random.Random(seed)
    files = [paragraphs for text in _texts(roots) if (paragraphs := _paragraphs(text))]
    found: dict[str, None] = {}
    for _ in range(4 * count if files else 0):
        if len(found) == count:
            break
        paragraphs, length = order.choice(files), order.randint(*_ARTICLE_WORDS)
        text = " ".join(paragraphs[order.randrange((len(paragraphs) + 1) // 2) :])
        stretch = " ".join(text.split()[:length])
        whole = stretch[: stretch.rfind(". ") + 1] if ". " in stretch else ""
        if len(whole.split()) >= _ARTICLE_WORDS[0] // 2:
            found[whole] = None
    return list(found)


def read_retrievals(roots: Iterable[Path], count: int, *, seed: int) -> list[str]:
    """`count` sets of up to five pieces of 100 words: of one file below `roots`, drawn at random, and one of another, each
    from wherever it begins, as an index of passages gives them."""
    order = random.Random(seed)
    files = [split for text in _texts(roots) if len(split := text.split()) > 2 * _PASSAGE_WORDS]
    found = []
    for _ in range(count if files else 0):
        main, other = order.choice(files), order.choice(files)
        pieces = [*(main for _ in range(order.randint(2, _PASSAGES - 1))), other]
        found.append(" ".join(_piece(order, one) for one in pieces))
    return found


def _piece(order: random.Random, text: Sequence[str]) -> str:
    start = order.randrange(len(text) // _PASSAGE_WORDS) * _PASSAGE_WORDS
    return " ".join(text[start : start + _PASSAGE_WORDS])


def _texts(roots: Iterable[Path]) -> Iterator[str]:
    files = sorted(path for root in roots for suffix in ("*.md", "*.rst", "*.txt") for path in root.rglob(suffix))
    return (read_text(path) for path in files)


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _is_sentence(text: str) -> bool:
    plain = sum(one.isalpha() or one in " ,.-" for one in text)
    return text[0].isupper() and text[-1] in ".!?" and plain > 0.95 * len(text)


def _set_apart(sentence: str) -> str:
    return " ".join(re.sub(r"([,.;:!?](?!\w)|[()„“”\"])", r" \1 ", sentence).split())
