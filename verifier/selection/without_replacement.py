"""The law of the next draw without replacement: what remains of q after its earlier draws at the same parent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from contracts.draft_law import TOTAL, DraftLaw
from models.law_rows import Law


class Remaining:
    """q without the tokens drawn so far; once its support is exhausted, uniform over all untried tokens.

    The fallback is Sequoia's (Chen et al., arXiv 2402.12374, algorithm 2): it lets a parent have more children than its
    law has tokens, and keeps the draw's law known. `contracts.drawing` draws by the same rule.
    """

    def __init__(self, law: DraftLaw, vocab_size: int) -> None:
        self._ids: npt.NDArray[np.int64] = law.token_ids
        self._weights: npt.NDArray[np.int64] = law.weights.copy()
        self._left = TOTAL
        self._tried: list[int] = []
        self._vocab_size = vocab_size

    def probability(self, token: int) -> float:
        """q_i(token) of the next draw, one float64 division from exact integers."""
        if self._left:
            i = int(self._ids.searchsorted(token))
            found = i < len(self._ids) and int(self._ids[i]) == token
            return int(self._weights[i]) / self._left if found else 0.0
        return 0.0 if token in self._tried else 1.0 / (self._vocab_size - len(self._tried))

    def taken_from(self, target: Law, scale: float = 1.0) -> tuple[float, Law]:
        """[target - scale * q_i]_+ : mass and normalised law."""
        if self._left:
            return target.minus(self._ids, (self._weights * (scale / self._left)).astype(np.float64))
        share = scale / (self._vocab_size - len(self._tried))
        return target.minus_elsewhere(share, np.array(self._tried, dtype=np.int64))

    def remove(self, token: int) -> None:
        """Strikes out a drawn token."""
        self._tried.append(token)
        i = int(self._ids.searchsorted(token))
        if i < len(self._ids) and int(self._ids[i]) == token:
            self._left -= int(self._weights[i])
            self._weights[i] = 0
