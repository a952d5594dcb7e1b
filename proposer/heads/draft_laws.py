"""A head's laws under a request's sampling parameters, over its own vocabulary wherever that makes no difference.

Temperature and truncation act on whatever tokens there are, so the law over the draft vocabulary *is* the head's law, and
sweeping 4,096 logits instead of 49,152 is most of the saving. Edits name target ids (bans, biases, penalties), so with
them the logits are spread over the target's vocabulary first, -inf where the head has no token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from contracts.errors import Internal
from contracts.sampling import SamplingPolicy
from models.law_rows import SparseLaw
from models.law_truncation import truncates
from models.laws import LawProcessor, TargetLaws
from proposer.heads.head import Int64Array
from proposer.heads.vocabulary import DraftVocabulary


class HeadLaws:
    """Makes the laws of one round. support: most tokens a law or a choice will be asked for."""

    def __init__(
        self,
        policy: SamplingPolicy,
        vocabulary: DraftVocabulary,
        *,
        prompt_len: int,
        eos_ids: Sequence[int],
        support: int,
    ) -> None:
        self._vocabulary, self._support = vocabulary, support
        self._edited = edits(policy)
        self._plain = policy.temperature == 1.0 and not self._edited and not truncates(policy)
        self._processor = LawProcessor(
            policy,
            vocab_size=vocabulary.target_size if self._edited else len(vocabulary),
            prompt_len=prompt_len,
            eos_ids=eos_ids if self._edited else (),
        )
        self._ids = torch.from_numpy(vocabulary.ids)

    def laws(self, logits: Tensor, *, prefix: Int64Array, token_ids: Int64Array, parents: Int64Array) -> TargetLaws:
        """Laws over target ids of logits float32 [N + 1, V'] of the head; rows as in `LawProcessor.laws`."""
        if self._edited:
            spread = logits.new_full((len(logits), self._vocabulary.target_size), float("-inf"))
            spread[:, self._ids] = logits
            return self._processor.laws(spread, prefix=prefix, token_ids=token_ids, parents=parents)
        if self._plain:
            return _Softmax(logits, self._vocabulary, self._support)
        # Without edits no token's identity matters, so zeros stand for them: the processor's ids are draft indices.
        plain = self._processor.laws(
            logits, prefix=np.zeros(1, np.int64), token_ids=np.zeros_like(token_ids), parents=parents
        )
        return _Mapped(plain, self._vocabulary, self._support)


class _Mapped(TargetLaws):
    """Laws over draft indices read as laws over target ids, cut to the `support` likeliest tokens."""

    def __init__(self, laws: TargetLaws, vocabulary: DraftVocabulary, support: int) -> None:
        def law_of(row: int) -> SparseLaw:
            indices, probabilities = laws.row(row).top(support)
            order = np.argsort(indices)
            return SparseLaw(vocabulary.to_target(indices[order]), probabilities[order], vocabulary.target_size)

        super().__init__(vocabulary.target_size, law_of, lambda row: int(vocabulary.ids[laws.argmax(row)]))


class _Softmax(TargetLaws):
    """The softmax of each row cut to its `support` likeliest tokens: what the processor gives at temperature 1 without
    truncation, for a tenth of its time, which a head's few rows would notice."""

    def __init__(self, logits: Tensor, vocabulary: DraftVocabulary, support: int) -> None:
        count = min(support, logits.shape[1])

        def law_of(row: int) -> SparseLaw:
            scores = logits[row + 1]
            top = scores.topk(count)
            total = float(torch.logsumexp(scores, dim=0))
            if not np.isfinite(total):
                raise Internal("logits", f"the head's logits of predictor row {row} are not finite")
            indices = top.indices.numpy()
            order = np.argsort(indices)
            probabilities = np.exp(top.values.numpy().astype(np.float64) - total)
            keep = order[probabilities[order] > 0.0]
            return SparseLaw(vocabulary.to_target(indices[keep]), probabilities[keep], vocabulary.target_size)

        super().__init__(vocabulary.target_size, law_of, lambda row: int(vocabulary.ids[int(logits[row + 1].argmax())]))


def edits(policy: SamplingPolicy) -> bool:
    """Whether the policy changes logits of particular tokens."""
    return bool(
        policy.logit_bias
        or policy.banned_ids
        or policy.allowed_ids
        or policy.min_tokens
        or policy.repetition_penalty != 1.0
        or policy.presence_penalty
        or policy.frequency_penalty
    )
