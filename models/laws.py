"""The target's (or a draft's) next-token law at every node of a pass, under the request's sampling parameters.

Rows are *predictor rows*: -1 is the anchor, r the candidate row r; the law of row r scores the children of r. A row is
processed when a verifier first visits it, so only visited nodes are paid for, and it stays on the device. The pipeline of
a row: edits by its own prefix (models/law_edits.py), temperature, truncation (models/law_truncation.py). The result is the
law that draft laws are compared with; every verifier sees no other.

Defined edges: NaN raises Internal naming the row; tokens at +inf share all mass equally; tokens at -inf have none; a row
left without any token raises InvalidArgument if the policy emptied it and Internal if the logits came so. At temperature 0
the law is the point mass on the largest logit, ties to the lowest id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.draft_law import DraftLaw
from contracts.errors import Internal, InvalidArgument
from contracts.randomness import Chooser
from contracts.receipt import TokenLogprob
from contracts.sampling import SamplingPolicy
from contracts.topology import path_to
from models.law_edits import LogitEdits
from models.law_rows import DenseLaw, Law, SparseLaw, draft_law_of, law_from_vector, sample_at
from models.law_scores import Scores, rows_of, scores_of
from models.law_truncation import truncated, truncates

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]


class TargetLaws:
    """The laws of one session's rows in one pass, computed on demand and kept."""

    def __init__(self, vocab_size: int, law_of: Callable[[int], Law], argmax_of: Callable[[int], int]) -> None:
        self.vocab_size = vocab_size
        self._law_of = law_of
        self._argmax_of = argmax_of
        self._laws: dict[int, Law] = {}

    def row(self, row: int) -> Law:
        """The processed law that scores the children of `row` (-1: the anchor)."""
        if row not in self._laws:
            self._laws[row] = self._law_of(row)
        return self._laws[row]

    def argmax(self, row: int) -> int:
        """The greedy token after edits; ties to the lowest id."""
        return self._argmax_of(row)

    def probability(self, row: int, token: int) -> float:
        """p(token) at `row`, float64."""
        return self.row(row).of(token)

    def log_probs(self, row: int) -> Floats:
        """float64 [V] on the host, -inf off the support: for references and small vocabularies."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.row(row).dense()))

    def sample(self, row: int, position: int, chooser: Chooser) -> int:
        """Gumbel-max with the noise of the absolute `position` that the sampled token will take."""
        return sample_at(self.row(row), chooser, position)

    def draft_law(self, row: int, *, support: int = 64) -> DraftLaw:
        """For proposers: the processed law cut to its likeliest tokens, as the integer law to draw from."""
        return draft_law_of(self.row(row), support)

    @classmethod
    def from_probabilities(cls, probabilities: npt.ArrayLike, *, device: str | None = None) -> TargetLaws:
        """Laws given outright, float [N + 1, V], row 0 the anchor's: on the host, or dense on `device`."""
        table = np.asarray(probabilities, dtype=np.float64)
        return cls(
            table.shape[1],
            lambda row: law_from_vector(table[row + 1], device=device),
            lambda row: int(np.argmax(table[row + 1])),
        )


class _Pass:
    """The logits of one pass with what is needed to edit and truncate them per row."""

    def __init__(
        self, policy: SamplingPolicy, edits: LogitEdits, logits: Tensor | Logits, tokens: Ints, parents: Ints
    ) -> None:
        self._policy = policy
        self._edits = edits
        self._logits = logits
        self._rows = rows_of(logits)
        self._truncates = truncates(policy)
        self._tokens = tokens
        self._parents = parents
        self._edited: dict[int, Scores] = {}

    def edited(self, row: int) -> Scores:
        """Edited logits with a finite maximum."""
        if row not in self._edited:
            self._edited[row] = self._edit(row)
        return self._edited[row]

    def _edit(self, row: int) -> Scores:
        raw = self._rows(row + 1)
        if self._edits.never:
            return _with_finite_top(raw, row)
        path = self._tokens[list(path_to(self._parents, row))]
        if not self._edits.edits_at(len(path)):
            return _with_finite_top(raw, row)
        if math.isnan(raw.top):
            # Before the edits, which could hide it.
            raise Internal("logits", f"NaN in the logits of predictor row {row}")
        edited = scores_of(self._edits.apply(_tensor(self._logits[row + 1]), path))
        if edited.top == -math.inf < raw.top:
            raise InvalidArgument("sampling", f"bans and allowed ids leave no token at predictor row {row}")
        return _with_finite_top(edited, row)

    def argmax(self, row: int) -> int:
        if self._edits.never:
            token, top = self._rows.first(row + 1)
            if math.isfinite(top):
                return token
        return self.edited(row).first_of_largest()

    def law(self, row: int) -> Law:
        if self._policy.greedy:
            return SparseLaw(np.array([self.argmax(row)]), np.ones(1), self._logits.shape[1])
        edited = self.edited(row)
        if self._truncates:
            return SparseLaw(*truncated(edited, self._policy), edited.size)
        return DenseLaw.of_logits(edited, self._policy.temperature)

    def reported(self, row: int, *, raw: bool) -> DenseLaw:
        """The law that logprobs speak of where it is not the processed one."""
        return DenseLaw.of_logits(_with_finite_top(self._rows(row + 1), row) if raw else self.edited(row))


def _tensor(logits: Tensor | Logits) -> Tensor:
    return torch.from_numpy(logits) if isinstance(logits, np.ndarray) else logits


def _with_finite_top(scores: Scores, row: int) -> Scores:
    """The row; tokens at +inf become 0 and then all others -inf. Raises Internal for NaN and for all -inf."""
    if math.isfinite(scores.top):
        return scores
    if math.isnan(scores.top):
        raise Internal("logits", f"NaN in the logits of predictor row {row}")
    if scores.top == -math.inf:
        raise Internal("logits", f"all logits of predictor row {row} are -inf")
    return scores.with_infinities_as_certain()


class _PassLaws(TargetLaws):
    def __init__(self, rows: _Pass, vocab_size: int) -> None:
        super().__init__(vocab_size, rows.law, rows.argmax)
        self.rows = rows


class LawProcessor:
    """One per session. Successive calls see the same, growing prefix."""

    def __init__(self, policy: SamplingPolicy, *, vocab_size: int, prompt_len: int, eos_ids: Sequence[int]) -> None:
        self._policy = policy
        self._vocab_size = vocab_size
        self._edits = LogitEdits(policy, vocab_size=vocab_size, prompt_len=prompt_len, eos_ids=eos_ids)

    def laws(self, logits: Tensor | Logits, *, prefix: Ints, token_ids: Ints, parents: Ints) -> TargetLaws:
        """The laws of one pass; nothing is computed yet.

        logits: float32 [N + 1, V], row 0 the anchor's, row r + 1 candidate r's; kept, not copied, not mutated. prefix:
        int64 [prefix_len], the published tokens. token_ids, parents: int64 [N].
        Raises InvalidArgument for shapes that do not fit.
        """
        if tuple(logits.shape) != (len(token_ids) + 1, self._vocab_size):
            raise InvalidArgument(
                "logits", f"{tuple(logits.shape)}, expected ({len(token_ids) + 1}, {self._vocab_size})"
            )
        self._edits.advance(prefix)
        return _PassLaws(_Pass(self._policy, self._edits, logits, token_ids, parents), self._vocab_size)

    def logprob(self, laws: TargetLaws, row: int, token: int) -> TokenLogprob:
        """Log-probability of `token` published after `row`, and the policy's number of alternatives.

        Of the processed law; of the raw logits by `raw_logprobs`; at temperature 0, where the processed law is a point,
        of the edited logits at temperature 1.
        """
        law = laws.row(row)
        if isinstance(laws, _PassLaws) and (self._policy.raw_logprobs or self._policy.greedy):
            law = laws.rows.reported(row, raw=self._policy.raw_logprobs)
        with np.errstate(divide="ignore"):
            own = float(np.log(law.at(np.array([token]))[0]))
        if not self._policy.logprobs:
            return TokenLogprob(own)
        ids, probabilities = law.top(self._policy.logprobs)
        return TokenLogprob(own, tuple(ids.tolist()), tuple(np.log(probabilities).tolist()))
