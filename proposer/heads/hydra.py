"""Hydra and Hydra++: heads that see the drafted tokens (arXiv 2402.05109; M7.7 section 0x06B).

Head i reads the row before the anchor and the embeddings of the anchor and of the i - 1 drafted tokens, side by side:
[(i + 1) H] wide. Hydra++ has deeper heads, learns the target's law rather than hard labels, and reads, in place of the raw
row, a prefix-attention layer over all rows, run once a round with KV of its own. `PrefixAttention` is that layer.

Where we differ: rows and embeddings are divided by their root mean square before they are joined.
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


class HydraNetwork(nn.Module):
    """depth heads; head i (1-based) joins i + 1 vectors into H and runs `blocks` residual blocks over the sum of that and
    the row. prefix: Hydra++'s attention layer, or None.

    Parameters: joins.i [H, (i + 1) H], heads.i.weight, heads.i.bias, prefix.*. `embedding` [V, H] and `head` [V', H] are the
    target's.
    """

    embedding: Tensor
    head: Tensor

    def __init__(
        self,
        hidden: int,
        depth: int,
        blocks: int,
        embedding: Tensor,
        head: Tensor,
        *,
        prefix: PrefixNetwork | None = None,
    ) -> None:
        super().__init__()
        self.joins = nn.ParameterList(
            nn.Parameter(torch.randn(hidden, (i + 1) * hidden) * 0.5 / ((i + 1) * hidden) ** 0.5)
            for i in range(1, depth + 1)
        )
        self.heads = nn.ModuleList(ResidualBlocks(hidden, blocks) for _ in range(depth))
        self.prefix = prefix
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)

    @property
    def depth(self) -> int:
        return len(self.joins)

    def logits(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Of head i = tokens.shape[1]: float32 [N, V']. rows [N, H]: the state before the anchor. tokens int64 [N, i]: the
        anchor and the drafted tokens."""
        count = tokens.shape[1]
        embedded = rms(self.embedding[tokens].float(), _EPS).flatten(1)
        joined = functional.linear(torch.cat([rms(rows, _EPS), embedded], dim=1), self.joins[count - 1])
        return functional.linear(self.heads[count - 1](rows + joined), self.head)


class HydraHead:
    """Implements DraftHead."""

    taps = (FINAL,)

    def __init__(
        self, network: HydraNetwork, vocabulary: DraftVocabulary, prefix_rows: PrefixRows | None = None
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.vocabulary = vocabulary
        self._prefix_rows = prefix_rows

    @property
    def max_depth(self) -> int:
        return self.network.depth

    def open(self, capacity: int) -> HydraSession:
        prefix = None if self._prefix_rows is None else self._prefix_rows.open(capacity)
        return HydraSession(self.network, prefix)


class HydraSession:
    """Implements HeadSession. Keeps each staged row's tokens from the anchor on; Hydra++ also the prefix layer's rows."""

    def __init__(self, network: HydraNetwork, prefix: PrefixSession | None) -> None:
        self._network, self._prefix = network, prefix
        self._row = torch.empty(0)
        self._anchor = 0
        self._paths: list[list[int]] = []

    @torch.inference_mode()
    def follow(self, prefix: Int64Array, states: HiddenStates) -> Tensor:
        if len(prefix) < 2:
            raise InvalidArgument("prefix", "needs two tokens: the anchor is predicted by the row before it")
        last = len(prefix) - 2
        if self._prefix is None:
            self._row = states.rows(last, last + 1)[FINAL]
        else:
            self._row = self._prefix.follow(prefix[:-1], states)
        self._anchor, self._paths = int(prefix[-1]), []
        return self._network.logits(self._row, torch.tensor([[self._anchor]]))[0]

    @torch.inference_mode()
    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor:
        fresh = [
            [*(self._paths[parent] if parent >= 0 else [self._anchor]), token]
            for token, parent in zip(token_ids, parents, strict=True)
        ]
        self._paths.extend(fresh)
        # One call runs one depth as a rule: the drafting loop stages level by level.
        groups = {len(path): [number for number, one in enumerate(fresh) if len(one) == len(path)] for path in fresh}
        out = torch.empty(len(fresh), len(self._network.head))
        for members in groups.values():
            tokens = torch.tensor([fresh[number] for number in members])
            out[members] = self._network.logits(self._row.expand(len(members), -1), tokens)
        return out

    def settle(self) -> None:
        self._paths = []

    def release(self) -> None:
        if self._prefix is not None:
            self._prefix.release()
