"""The reduced draft vocabulary: the frequent tokens of its conversations, end of sequence always among them.

On a CPU the product with the vocabulary is most of a head's cost, and a 135M model's text is nearly all covered by a tenth
of its vocabulary (FR-Spec, arXiv 2502.14856, section 3; EAGLE-3's draft vocabulary). Draft index i stands for target id
`ids[i]`, exactly: a token outside is never proposed, which costs acceptance and never correctness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument

Int64Array = npt.NDArray[np.int64]


class DraftVocabulary:
    """ids: target ids, int64 [V'], strictly ascending. Raises InvalidArgument otherwise, for ids outside the target's
    vocabulary and where an end-of-sequence id is missing."""

    def __init__(self, ids: Int64Array, *, target_size: int, eos_ids: Sequence[int]) -> None:
        if ids.ndim != 1 or not len(ids) or np.any(np.diff(ids) <= 0) or ids[0] < 0 or ids[-1] >= target_size:
            raise InvalidArgument("vocabulary", f"must be strictly ascending ids within [0, {target_size})")
        missing = sorted(set(eos_ids) - set(ids.tolist()))
        if missing:
            raise InvalidArgument("vocabulary", f"lacks the end-of-sequence ids {missing}: drafts could never end")
        self.ids = ids
        # To read a few of them from: an array gives out objects of numpy's.
        self.listed: list[int] = ids.tolist()
        held = np.zeros(target_size, np.uint8)
        held[ids] = 1
        # Of each target id: 1 where it is among them. Bytes for the same reason.
        self.held = held.tobytes()
        self.target_size = target_size
        self._index = np.full(target_size, -1, np.int64)
        self._index[ids] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self.ids)

    def to_target(self, draft: Int64Array) -> Int64Array:
        """Target ids of draft indices."""
        return np.asarray(self.ids[draft], np.int64)

    def to_draft(self, target: Int64Array) -> Int64Array:
        """Draft indices of target ids; -1 for a token that is not in the draft vocabulary."""
        return np.asarray(self._index[target], np.int64)


def frequent(
    counts: Mapping[int, int], size: int, *, target_size: int, eos_ids: Sequence[int], always: Sequence[int] = ()
) -> DraftVocabulary:
    """The `size` most frequent tokens, ties to the lower id; EOS ids and those of `always` displace the rarest where they
    are not among them. `size` holds at least these."""
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    chosen = list(dict.fromkeys([*eos_ids, *always, *ranked, *range(target_size)]))[: min(size, target_size)]
    return DraftVocabulary(np.array(sorted(chosen), np.int64), target_size=target_size, eos_ids=eos_ids)
