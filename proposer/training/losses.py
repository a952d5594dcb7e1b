"""Losses over a draft vocabulary: hard labels, the teacher's law, features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -1


@dataclass(frozen=True)
class Score:
    """One depth's loss over its owned rows, and how many of them the head's first choice got right (labels outside the
    draft vocabulary count as missed). rows is 0 for a depth without labels; its loss is then no part of any sum."""

    loss: Tensor
    hits: int
    rows: int


def hard(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, mean over all rows, of which those with label -1 count zero; zero (with a gradient of zero) for none.

    logits: float32 [R, V']; labels: int64 [R]. Every loss is a mean over the same rows, so that a batch's loss follows from
    those of its parts.
    """
    if not bool((labels != IGNORED).any()):
        return logits.sum() * 0.0
    return functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum") / len(labels)


def teacher(logits: Tensor, labels: Tensor, ids: Tensor, probs: Tensor) -> Tensor:
    """Cross entropy to the teacher's law (M7.7 section 0x0BA), given as its likeliest tokens [R, K], mean over all rows.

    Rows whose label lies outside the draft vocabulary count zero: the reduced law says nothing true about them.
    """
    known = labels != IGNORED
    if not bool(known.any()):
        return logits.sum() * 0.0
    log_probs = logits.gather(1, ids) - torch.logsumexp(logits, dim=1, keepdim=True)
    return -(probs * log_probs).sum(dim=1)[known].sum() / len(labels)


def feature(predicted: Tensor, actual: Tensor) -> Tensor:
    """Smooth L1 between features, mean over rows and width (EAGLE, arXiv 2401.15077, section 3.2)."""
    if not len(predicted):
        return predicted.sum() * 0.0
    return functional.smooth_l1_loss(predicted, actual)


def hits(logits: Tensor, labels: Tensor) -> int:
    return int((logits.argmax(dim=1) == labels).sum()) if len(labels) else 0
