"""Which row predicts which token: offset-aligned labels over packed streams (M7.2 sections 0x02F and 0x05A, M7.7 0x06B).

A stream holds several segments (conversations) one after another. Row t is the target's hidden state after token t. The
label at offset d of row t is token t + d, and the pair is used only if both lie in one segment, every input between them is
valid, and the loss mask owns the label. Nothing wraps around and nothing is borrowed from a neighbouring segment.

    offset 1   the target's own next token
    offset 2   Medusa head 0, Hydra head 1, the first step of EAGLE: the candidate after the anchor
    offset j+2 Medusa head j = Hydra head j + 1
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stream:
    """tokens, segments: int64 [T]. owned: bool [T], the loss counts this token as a label. valid: bool [T], the row is there
    as an input (a conversation's last token was never run, so it has none). Raises ValueError for unequal lengths."""

    tokens: Tensor
    segments: Tensor
    owned: Tensor
    valid: Tensor

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.segments) == len(self.owned) == len(self.valid):
            raise ValueError("tokens, segments, owned and valid must have one length")


def label_rows(stream: Stream, offset: int) -> Tensor:
    """Rows t, int64 [R] ascending, whose label is token t + offset; empty where a stream has none. offset >= 1.

    The row and every conditioning token up to t + offset - 1 must be in the label's segment; the row itself must be valid.
    """
    if offset < 1:
        raise ValueError(f"offset {offset} must be at least 1")
    if len(stream.tokens) <= offset:
        return torch.empty(0, dtype=torch.int64)
    # Segments are contiguous, so equal ends mean that everything between lies in the same one.
    together = stream.segments[:-offset] == stream.segments[offset:]
    return torch.nonzero(together & stream.valid[:-offset] & stream.owned[offset:]).flatten()


def labels_at(stream: Stream, rows: Tensor, offset: int) -> Tensor:
    """The labels of `rows`, int64 [R]."""
    return stream.tokens[rows + offset]
