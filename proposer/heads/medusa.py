"""Medusa: K heads over one state, each for its own future offset (arXiv 2401.10774, section 3.1).

Head j reads the row that predicted the anchor and predicts the token j + 2 after that row, so the anchor's candidates come
from head 0. Heads do not see each other's tokens: the children of all nodes of a depth share one law.

Two checkpoint formats, which no loader may mix up: `shared` heads reuse the target's frozen vocabulary rows, `own` heads
have vocabulary rows of their own (started from the target's).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from contracts.errors import InvalidArgument
from proposer.heads.head import HiddenStates, Int64Array
from proposer.heads.vocabulary import DraftVocabulary

FINAL = "final_norm"


class ResidualBlocks(nn.Module):
    """x + silu(W x + b), `blocks` times; W and b begin at zero, so the blocks begin as the identity."""

    def __init__(self, hidden: int, blocks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(blocks, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(blocks, hidden))

    def forward(self, x: Tensor) -> Tensor:
        for weight, bias in zip(self.weight, self.bias, strict=True):
            x = x + functional.silu(functional.linear(x, weight, bias))
        return x


class MedusaNetwork(nn.Module):
    """depth heads of `blocks` residual blocks. own_projection: heads [depth, V', H] of their own rather than `head` [V', H].

    Parameters: heads.j.weight, heads.j.bias, and projection where own.
    """

    head: Tensor

    def __init__(self, hidden: int, depth: int, blocks: int, head: Tensor, *, own_projection: bool) -> None:
        super().__init__()
        self.heads = nn.ModuleList(ResidualBlocks(hidden, blocks) for _ in range(depth))
        self.projection = nn.Parameter(head.expand(depth, *head.shape).clone()) if own_projection else None
        self.register_buffer("head", head, persistent=False)

    def logits(self, rows: Tensor, j: int) -> Tensor:
        """Head j's logits of rows [N, H]: float32 [N, V'], for the tokens at offset j + 2."""
        projection = self.head if self.projection is None else self.projection[j]
        return functional.linear(self.heads[j](rows), projection)


class MedusaHead:
    """Implements DraftHead."""

    taps = (FINAL,)

    def __init__(self, network: MedusaNetwork, vocabulary: DraftVocabulary) -> None:
        self.network = network.eval().requires_grad_(False)
        self.vocabulary = vocabulary

    @property
    def max_depth(self) -> int:
        return len(self.network.heads)

    def open(self, capacity: int) -> MedusaSession:
        return MedusaSession(self.network)


class MedusaSession:
    """Implements HeadSession; keeps nothing between rounds."""

    def __init__(self, network: MedusaNetwork) -> None:
        self._network = network
        self._row = torch.empty(0)

    @torch.inference_mode()
    def follow(self, prefix: Int64Array, states: HiddenStates) -> Tensor:
        if len(prefix) < 2:
            raise InvalidArgument("prefix", "needs two tokens: the anchor is predicted by the row before it")
        self._row = states.rows(len(prefix) - 2, len(prefix) - 1)[FINAL]
        return self._network.logits(self._row, 0)[0]

    @torch.inference_mode()
    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor:
        every = {depth: self._network.logits(self._row, depth)[0] for depth in set(depths)}
        return torch.stack([every[depth] for depth in np.asarray(depths).tolist()])

    def settle(self) -> None:
        """Nothing was kept."""

    def release(self) -> None:
        """Nothing is held."""
