"""What every training run begins with: the target's frozen rows, one draft vocabulary, examples to train on and held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from models.config import DecoderConfig, read_config
from models.weights import DecoderWeights, read_weights
from proposer.heads.eagle import FINAL
from proposer.heads.families import Frozen
from proposer.heads.vocabulary import DraftVocabulary, frequent
from proposer.training.corpus import (
    Example,
    common_prefix,
    prepare,
    read_conversations,
    split,
    token_counts,
)
from proposer.training.dataset import DIGEST, Dataset
from proposer.training.generate import Conversation
from proposer.training.loop import Figures

Step = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Reports:
    """Called along the way: step(name, done, total) while data is prepared, row(figures, token budget) while training."""

    step: Step
    row: Callable[[Figures, int], None]


@dataclass(frozen=True)
class Target:
    """The checkpoint that a run trains for, its weights in bfloat16 and what heads take from it in float32."""

    checkpoint: Path
    config: DecoderConfig
    weights: DecoderWeights
    frozen: Frozen
    eos_ids: tuple[int, ...]

    @classmethod
    def read(cls, checkpoint: Path, eos_ids: Sequence[int]) -> Target:
        config = read_config(checkpoint)
        weights = read_weights(checkpoint, config, torch.bfloat16)
        return cls(checkpoint, config, weights, Frozen(config, weights.embedding.float(), weights.head), tuple(eos_ids))


@dataclass(frozen=True)
class Corpus:
    """Data sets as one set: what they were when they were read, and the conversations kept for training and held out."""

    digests: tuple[str, ...]
    identities: tuple[dict[str, Any], ...]
    records: tuple[dict[str, Any], ...]
    kept: tuple[Conversation, ...]
    held_out: tuple[Conversation, ...]

    @classmethod
    def read(cls, data: Sequence[Dataset], taps: Sequence[str]) -> Corpus:
        # Digests before conversations: a data set may be growing.
        digests = tuple(dataset.digest for dataset in data)
        kept, held_out = split(read_conversations(data, sorted({FINAL, *taps})))
        identities, records = (tuple(one.identity for one in data), tuple(one.record for one in data))
        return cls(digests, identities, records, tuple(kept), tuple(held_out))

    def vocabulary(self, size: int, target: Target, always: Sequence[int] = ()) -> DraftVocabulary:
        """The frequent tokens of the training conversations and those of `always`."""
        counts = token_counts(self.kept)
        return frequent(counts, size, target_size=target.config.vocab_size, eos_ids=target.eos_ids, always=always)

    def examples(
        self, target: Target, vocabulary: DraftVocabulary, step: Step, *, prompts: bool, spent: bool, own: bool = False
    ) -> tuple[list[Example], list[Example]]:
        """(training, held out). prompts: the prompts' tokens are labels too, but for what all conversations begin with;
        held out are answers alone, so that figures compare whatever was trained on. own: conversations' own tokens are
        labels too. spent: a run whose budget is spent is
        only packed, and needs no examples to train on."""
        rows, told = target.frozen.rows(vocabulary), partial(step, "soft labels")
        label_start = max(common_prefix([*self.kept, *self.held_out]), 1) if prompts else None
        made = partial(prepare, vocabulary=vocabulary, head=rows, own_head=target.frozen.head if own else None)
        kept = [] if spent else made(self.kept, label_start=label_start, progress=told)
        return kept, made(self.held_out, progress=told)

    def facts(self, held_out: Sequence[Example], vocabulary: DraftVocabulary) -> dict[str, Any]:
        """What a manifest says of the data."""
        return {
            "data": list(self.digests),
            "data_digest": DIGEST,
            "data_identity": list(self.identities),
            "data_record": list(self.records),
            "conversations": len(self.kept),
            "answer_tokens": sum(len(one.tokens) - one.answer_start for one in self.kept),
            "vocabulary_coverage": _coverage(held_out, vocabulary),
        }


def _coverage(examples: Sequence[Example], vocabulary: DraftVocabulary) -> float:
    """Share of the answers' tokens that the draft vocabulary has."""
    inside = total = 0
    for one in examples:
        answer = vocabulary.to_draft(one.tokens[one.label_start :].numpy())
        inside += int((answer >= 0).sum())
        total += len(answer)
    return inside / total if total else 0.0
