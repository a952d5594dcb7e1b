"""Tokens that a conversation's own text has and the draft vocabulary lacks: labels for a head that drafts them.

An EAGLE head's trees by value draft, beside the draft vocabulary, the tokens of the session's text so far
(`proposer/heads/eagle_draft.py`). Trained over the draft vocabulary alone, a head never learns when to offer them. Here each
label is chosen among exactly the tokens that would be drafted for it: those of the vocabulary, and those that stand before
it in its own conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from proposer.heads.eagle_draft import MOST_FURTHER
from proposer.heads.vocabulary import DraftVocabulary

# The logit of a token that does not stand before the label: a probability of zero whose logarithm is finite.
_UNSEEN = -1e4


@dataclass(frozen=True)
class OwnTokens:
    """Of one conversation or of several in a row. ids: target ids, int64 [F], of each conversation in the order in which
    they come. rows: the target's vocabulary rows [F, H]. first: where each stands first, int64 [F]. segments: whose it is.
    """

    ids: Tensor
    rows: Tensor
    first: Tensor
    segments: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, tokens: Tensor, vocabulary: DraftVocabulary, head: Tensor) -> OwnTokens:
        """Those of one conversation, tokens int64 [N]. head: the target's rows of its whole vocabulary [V, H]."""
        outside = np.flatnonzero(vocabulary.to_draft(tokens.numpy()) < 0)
        ids, places = np.unique(tokens.numpy()[outside], return_index=True)
        order = np.argsort(places)[:MOST_FURTHER]
        chosen = torch.from_numpy(ids[order])
        return cls(chosen, head[chosen], torch.from_numpy(outside[places[order]]), torch.zeros(len(chosen)).long())

    @classmethod
    def joined(cls, parts: Sequence[OwnTokens], starts: Sequence[int]) -> OwnTokens:
        """Those of conversations packed one after another, which begin at `starts`."""
        return cls(
            torch.cat([part.ids for part in parts]),
            torch.cat([part.rows for part in parts]),
            torch.cat([part.first + start for part, start in zip(parts, starts, strict=True)]),
            torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part) for part in parts])),
        )

    def columns(self, tokens: Tensor) -> Tensor:
        """Of one conversation's tokens int64 [N]: which of these each is, -1 where it is none or stands there first."""
        column = {token: index for index, token in enumerate(self.ids.tolist())}
        found = torch.tensor([column.get(token, -1) for token in tokens.tolist()], dtype=torch.int64)
        found[self.first] = -1
        return found

    def beside(self, logits: Tensor, features: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Logits [R, V' + F]: those over the draft vocabulary [R, V'] and these tokens', of which a row sees what stands
        before its label. features: [R, H]. positions, segments: int64 [R], of the labels."""
        if not len(self):
            return logits
        seen = (self.segments == segments[:, None]) & (self.first < positions[:, None])
        own = functional.linear(features, self.rows.to(features.dtype)).masked_fill(~seen, _UNSEEN)
        return torch.cat([logits, own], dim=1)


def no_own_tokens(hidden: int) -> OwnTokens:
    """Of a conversation whose labels are the draft vocabulary's alone."""
    none = torch.zeros(0, dtype=torch.int64)
    return OwnTokens(none, torch.zeros(0, hidden), none, none)
