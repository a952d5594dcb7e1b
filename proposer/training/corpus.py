"""A data set made ready for training: conversations in memory, a split, the draft vocabulary, the teacher's soft labels."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from proposer.heads.vocabulary import DraftVocabulary
from proposer.training.dataset import Dataset
from proposer.training.generate import Conversation
from proposer.training.labels import Stream
from proposer.training.own_tokens import OwnTokens, no_own_tokens

TEACHER_TOKENS = 16
_HELD_OUT = 25
_TEACHER_ROWS = 2048


@dataclass(frozen=True)
class Example:
    """One conversation. tokens int64 [N]; label_start: its first token that is a label (`answer_start`, or one of the
    prompt's); hidden per tap float16 [N - 1, H]; teacher: the target's law after row t cut to its likeliest
    draft-vocabulary tokens, indices int32 and probabilities float16 [N - 1, K] (renormalised over that vocabulary before
    the cut), zero for rows that predict no label. own: further tokens that are drafted for it, index V' + i for the i-th."""

    name: str
    kind: str
    tokens: Tensor
    label_start: int
    hidden: dict[str, Tensor]
    teacher_ids: Tensor
    teacher_probs: Tensor
    own: OwnTokens

    @property
    def label_tokens(self) -> int:
        return len(self.tokens) - self.label_start


@dataclass(frozen=True)
class Batch:
    """Packed examples. hidden: per tap float32 [T, H], rows of absent inputs zero (and not valid). labels: draft indices of
    the tokens, -1 outside the draft vocabulary and what is `own`. teacher_*: as in `Example`, [T, K]. bounds: start and stop
    of each. own: all examples', one after another. step: how many steps the run had taken, which stages and noise follow
    from; 0 outside a run."""

    stream: Stream
    hidden: dict[str, Tensor]
    labels: Tensor
    teacher_ids: Tensor
    teacher_probs: Tensor
    bounds: tuple[tuple[int, int], ...]
    label_starts: tuple[int, ...]
    own: OwnTokens
    step: int = 0


def token_counts(conversations: Sequence[Conversation]) -> Counter[int]:
    """How often each token occurs in conversations: prompts count too, for answers copy from them."""
    counts: Counter[int] = Counter()
    for one in conversations:
        counts.update(one.tokens.tolist())
    return counts


def read_conversations(datasets: Sequence[Dataset], taps: Sequence[str]) -> list[Conversation]:
    """The conversations of all data sets as one set: of several with the same prompt the first, so that none is trained on
    in one data set and held out in another."""
    prompts: set[bytes] = set()
    kept = []
    for dataset in datasets:
        for one in dataset.conversations(taps):
            prompt = one.tokens[: one.answer_start].tobytes()
            if prompt not in prompts and len(one.tokens) > one.answer_start + 2:
                prompts.add(prompt)
                kept.append(one)
    return kept


def prepare(
    conversations: Sequence[Conversation],
    vocabulary: DraftVocabulary,
    head: Tensor,
    *,
    features: str = "final_norm",
    label_start: int | None = None,
    own_head: Tensor | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Example]:
    """Examples with soft labels. head: float32 [V', H], the target's vocabulary rows of the draft vocabulary; its product
    with the `features` rows is the target's law, exactly, over those tokens. label_start: the first token that is a label,
    at least 1; None for the answer's first. own_head: the target's rows of its whole vocabulary [V, H] where conversations'
    own tokens are labels too."""
    examples = []
    for index, one in enumerate(conversations):
        hidden = {tap: torch.from_numpy(rows) for tap, rows in one.hidden.items()}
        # Rows before the one that predicts the first label are no label of anything.
        start = one.answer_start if label_start is None else min(label_start, one.answer_start)
        before = start - 1
        tokens = torch.from_numpy(one.tokens.astype(np.int64))
        own = no_own_tokens(head.shape[1]) if own_head is None else OwnTokens.of(tokens, vocabulary, own_head)
        ids, probs = (_behind_zeros(part, before) for part in _teacher(hidden[features], before, head, own))
        examples.append(Example(one.name, one.kind, tokens, start, hidden, ids, probs, own))
        progress(index + 1, len(conversations))
    return examples


@torch.inference_mode()
def _teacher(features: Tensor, first: int, head: Tensor, own: OwnTokens) -> tuple[Tensor, Tensor]:
    """Of rows from `first` on: row t's law is that of token t + 1."""
    ids, probs = [], []
    for labels in torch.arange(first + 1, len(features) + 1).split(_TEACHER_ROWS):
        rows = features[labels - 1].float()
        logits = own.beside(rows @ head.T, rows, labels, torch.zeros_like(labels))
        top = torch.softmax(logits, dim=-1).topk(min(TEACHER_TOKENS, len(head)), dim=-1)
        ids.append(top.indices.to(torch.int32))
        probs.append(top.values.half())
    return torch.cat(ids).clone(), torch.cat(probs).clone()


def _behind_zeros(rows: Tensor, count: int) -> Tensor:
    return torch.cat([rows.new_zeros((count, rows.shape[1])), rows])


def common_prefix(conversations: Sequence[Conversation]) -> int:
    """How many tokens all conversations begin with: the template's own, which teach nothing."""
    first = conversations[0].tokens
    length = min(one.answer_start for one in conversations)
    for one in conversations:
        differs = np.flatnonzero(one.tokens[:length] != first[:length])
        length = int(differs[0]) if len(differs) else length
    return length


def held_out_by_name(name: str) -> bool:
    """Whether a conversation of this name is kept out of training."""
    return zlib.crc32(name.encode()) % _HELD_OUT == 0


def split(conversations: Sequence[Conversation]) -> tuple[list[Conversation], list[Conversation]]:
    """(training, held out): one conversation in twenty-five is held out, chosen by its name."""
    held = [held_out_by_name(one.name) for one in conversations]
    return (
        [one for one, out in zip(conversations, held, strict=True) if not out],
        [one for one, out in zip(conversations, held, strict=True) if out],
    )


def groups(examples: Sequence[Example], *, label_tokens: int, seed: int) -> Iterator[list[Example]]:
    """One epoch in a seeded order, in groups of about `label_tokens` labels."""
    order = list(examples)
    random.Random(seed).shuffle(order)
    pending: list[Example] = []
    count = 0
    for one in order:
        pending.append(one)
        count += one.label_tokens
        if count >= label_tokens:
            yield pending
            pending, count = [], 0
    if pending:
        yield pending


def pack(examples: Sequence[Example], vocabulary: DraftVocabulary, step: int = 0) -> Batch:
    """Examples one after another, each a segment of its own; step as in `Batch`."""
    ends = np.cumsum([len(one.tokens) for one in examples]).tolist()
    bounds = tuple(zip([0, *ends[:-1]], ends, strict=True))
    tokens = torch.cat([one.tokens for one in examples])
    segments = torch.repeat_interleave(torch.arange(len(examples)), torch.tensor([len(one.tokens) for one in examples]))
    owned = torch.zeros(len(tokens), dtype=torch.bool)
    valid = torch.ones(len(tokens), dtype=torch.bool)
    for (start, stop), one in zip(bounds, examples, strict=True):
        owned[start + one.label_start : stop] = True
        valid[stop - 1] = False
    own = OwnTokens.joined([one.own for one in examples], [start for start, _ in bounds])
    labels = torch.from_numpy(vocabulary.to_draft(tokens.numpy()))
    teacher_ids = _padded([one.teacher_ids for one in examples]).long()
    before = len(vocabulary)
    for (start, stop), one in zip(bounds, examples, strict=True):
        columns = one.own.columns(one.tokens)
        labels[start:stop] = torch.where(columns < 0, labels[start:stop], before + columns)
        ids = teacher_ids[start:stop]
        ids[ids >= len(vocabulary)] += before - len(vocabulary)
        before += len(one.own)
    return Batch(
        stream=Stream(tokens, segments, owned, valid),
        hidden={tap: _padded([one.hidden[tap] for one in examples]) for tap in examples[0].hidden},
        labels=labels,
        teacher_ids=teacher_ids,
        teacher_probs=_padded([one.teacher_probs for one in examples]),
        bounds=bounds,
        label_starts=tuple(start + one.label_start for (start, _), one in zip(bounds, examples, strict=True)),
        own=own,
        step=step,
    )


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """float32, each part followed by one zero row: the last token's, which has no row."""
    zero = parts[0].new_zeros((1, parts[0].shape[1]))
    return torch.cat([piece for part in parts for piece in (part, zero)]).float()
