"""Clover: a recurrent draft state that attends to the last token's embedding (arXiv 2405.00263; M7.7 section 0x06C).

    h_0 = the augmented row before the anchor         (augmenting block: one decoder layer over the target's rows)
    h_i = h_{i-1} + Attention(Norm(h_{i-1}), E(x), E(x))   with x the anchor, then each drafted token
    law of the next token = softmax(W_lm MLP(h_i))     with the target's own vocabulary rows

With a single key the softmax is 1 and attention is its value; the paper's figure shows a light gate, whose exact form it
leaves open. Ours: queries and keys give one score a head, squashed by a sigmoid, so that the state decides how much of the
token each head lets in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from contracts.errors import InvalidArgument
from proposer.heads.head import HiddenStates, Int64Array
from proposer.heads.layers import rms
from proposer.heads.medusa import FINAL, ResidualBlocks
from proposer.heads.prefix import PrefixNetwork, PrefixRows, PrefixSession
from proposer.heads.vocabulary import DraftVocabulary

_EPS = 1e-5


class CloverNetwork(nn.Module):
    """heads: attention heads of the interaction. One set of weights serves all depths.

    Parameters: query, key, value, out [H, H] each, blocks.*, prefix.*. `embedding` and `head` are the target's.
    """

    embedding: Tensor
    head: Tensor

    def __init__(
        self, hidden: int, heads: int, depth: int, embedding: Tensor, head: Tensor, *, prefix: PrefixNetwork | None
    ) -> None:
        super().__init__()
        self.attention_heads, self.depth = heads, depth
        for name in ("query", "key", "value", "out"):
            setattr(self, name, nn.Parameter(torch.randn(hidden, hidden) / hidden**0.5))
        self.blocks = ResidualBlocks(hidden, 2)
        self.prefix = prefix
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)

    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter
    out: nn.Parameter

    def step(self, state: Tensor, tokens: Tensor) -> Tensor:
        """The state after one more token: float32 [N, H] from [N, H] and int64 [N]."""
        embedded = rms(self.embedding[tokens].float(), _EPS)
        shape = (len(state), self.attention_heads, -1)
        query = functional.linear(rms(state, _EPS), self.query).view(shape)
        key, value = functional.linear(embedded, self.key).view(shape), functional.linear(embedded, self.value)
        gate = torch.sigmoid((query * key).sum(-1, keepdim=True) * key.shape[-1] ** -0.5)
        return state + functional.linear((gate * value.view(shape)).flatten(1), self.out)

    def logits(self, state: Tensor) -> Tensor:
        """float32 [N, V'] over the tokens that follow."""
        return functional.linear(self.blocks(state), self.head)


class CloverHead:
    """Implements DraftHead."""

    taps = (FINAL,)

    def __init__(
        self, network: CloverNetwork, vocabulary: DraftVocabulary, prefix_rows: PrefixRows | None = None
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.vocabulary = vocabulary
        self._prefix_rows = prefix_rows

    @property
    def max_depth(self) -> int:
        return self.network.depth

    def open(self, capacity: int) -> CloverSession:
        prefix = None if self._prefix_rows is None else self._prefix_rows.open(capacity)
        return CloverSession(self.network, prefix)


class CloverSession:
    """Implements HeadSession. Keeps one state per staged row of the round, row 0 the anchor's."""

    def __init__(self, network: CloverNetwork, prefix: PrefixSession | None) -> None:
        self._network, self._prefix = network, prefix
        self._states = torch.empty(0)

    @torch.inference_mode()
    def follow(self, prefix: Int64Array, states: HiddenStates) -> Tensor:
        if len(prefix) < 2:
            raise InvalidArgument("prefix", "needs two tokens: the anchor is predicted by the row before it")
        last = len(prefix) - 2
        prefix_layer = self._prefix
        row = states.rows(last, last + 1)[FINAL] if prefix_layer is None else prefix_layer.follow(prefix[:-1], states)
        self._states = self._network.step(row, torch.tensor([int(prefix[-1])]))
        return self._network.logits(self._states)[0]

    @torch.inference_mode()
    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor:
        fresh = self._network.step(self._states[torch.tensor(parents) + 1], torch.tensor(token_ids))
        self._states = torch.cat([self._states, fresh])
        return self._network.logits(fresh)

    def settle(self) -> None:
        self._states = self._states[:1]

    def release(self) -> None:
        if self._prefix is not None:
            self._prefix.release()
