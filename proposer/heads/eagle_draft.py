"""Drafting with an EAGLE head: its layer as a one-layer backend over fused rows, with the backend's own staged KV.

Fused row i (feature i with token i + 1) is a pure function of the published tokens up to i + 1, so the state after any round
is the longest common prefix of what was run and what was published. Rows made from predicted features live as staged rows
for one round only and are run anew from the target's rows once these are published: no ghost rows, and no missing row after
full acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from contracts.errors import InvalidArgument
from models.backend import Backend, KVSlot, RowBlock
from models.load import backend_of
from models.weights import DecoderWeights
from proposer.heads.eagle import FINAL, EagleNetwork
from proposer.heads.head import HiddenStates, Int64Array, common_length
from proposer.heads.prefix import backend_layer
from proposer.heads.vocabulary import DraftVocabulary

# Fused rows of one prefill pass: bounds the pass's own memory.
_PREFILL_ROWS = 256


class EagleHead:
    """Implements DraftHead. dtype: of the layer and the vocabulary rows while drafting; bf16 halves what is read."""

    max_depth = None

    def __init__(
        self,
        network: EagleNetwork,
        vocabulary: DraftVocabulary,
        *,
        digest: str,
        dtype: torch.dtype = torch.bfloat16,
        kv_budget_tokens: int = 16384,
        threads: int | None = None,
        poison: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self.network = network.eval().requires_grad_(False)
        # What a drafted token adds to a fused row, for all tokens that can be drafted: a look-up instead of a product.
        self._token_rows = network.fused(torch.zeros(1, 1), torch.from_numpy(vocabulary.ids))
        head = network.head.to(dtype)
        weights = DecoderWeights(
            embedding=head,
            layers=(backend_layer(network.layer, dtype),),
            final_norm=network.norm.detach().to(dtype),
            head=head,
        )
        config = replace(network.shape.config, vocab_size=len(vocabulary), num_layers=1, windows=(None,))
        self.backend: Backend = backend_of(
            config,
            weights,
            checkpoint_digest=digest,
            kv_budget_tokens=kv_budget_tokens,
            threads=threads,
            poison=poison,
        )

    @property
    def taps(self) -> tuple[str, ...]:
        return self.network.shape.taps

    def open(self, capacity: int) -> EagleSession:
        return EagleSession(self.network, self.backend, capacity, self._token_rows, self.vocabulary)


class EagleSession:
    """Implements HeadSession."""

    def __init__(
        self,
        network: EagleNetwork,
        backend: Backend,
        capacity: int,
        token_rows: Tensor,
        vocabulary: DraftVocabulary,
    ) -> None:
        self._network, self._backend = network, backend
        self._token_rows, self._vocabulary = token_rows, vocabulary
        self._slot: KVSlot = backend.allocate(capacity)
        # The tokens of the fused rows run so far: token i + 1 of row i, behind token 0.
        self._tokens: Int64Array = np.zeros(0, np.int64)
        self._features: Tensor = torch.empty(0)

    @property
    def rows(self) -> int:
        """Fused rows held, staged ones aside."""
        return self._slot.length

    @torch.inference_mode()
    def follow(self, prefix: Int64Array, states: HiddenStates) -> Tensor:
        if len(prefix) < 2:
            raise InvalidArgument("prefix", "needs two tokens: the first has no feature before it")
        total = len(prefix) - 1
        # The last row is always run anew, because rows are kept and logits are not.
        kept = min(max(common_length(self._tokens, prefix) - 1, 0), total - 1)
        halves = self._network.real(states.rows(kept, total))
        inputs = self._network.fused(halves, torch.from_numpy(prefix[kept + 1 :].astype(np.int64)))
        self._backend.truncate(self._slot, kept)
        self._tokens = prefix[: kept + 1].copy()
        logits: Tensor | None = None
        for start in range(kept, total, _PREFILL_ROWS):
            part = inputs[start - kept : start - kept + _PREFILL_ROWS]
            rows = np.arange(len(part), dtype=np.int64)
            last = start + len(part) == total
            block = RowBlock(
                self._slot, np.zeros(len(part), np.int64), start + rows, rows - 1, rows[-1:] if last else rows[:0], part
            )
            result = self._backend.forward([block], taps=(FINAL,) if last else ())
            self._backend.commit(self._slot, rows.tolist())
            self._tokens = prefix[: start + len(part) + 1].copy()
            if last:
                logits, self._features = result.logits[0][0], result.hidden[FINAL][0][-1:]
        assert logits is not None
        return logits

    @torch.inference_mode()
    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor:
        # Row 0 of the features is the anchor's, row s + 1 that of staged row s.
        halves = self._network.drafted(self._features[torch.tensor(parents) + 1])
        inputs = halves + self._tokens_added(token_ids)
        block = RowBlock(
            self._slot,
            np.zeros(len(token_ids), np.int64),
            self._slot.length - 1 + np.asarray(depths, np.int64),
            np.asarray(parents, np.int64),
            inputs=inputs,
        )
        result = self._backend.forward([block], taps=(FINAL,))
        self._features = torch.cat([self._features, result.hidden[FINAL][0]])
        return result.logits[0]

    def _tokens_added(self, token_ids: Sequence[int]) -> Tensor:
        drafted = self._vocabulary.to_draft(np.asarray(token_ids, np.int64))
        if (drafted < 0).any():
            # Not a token of ours: drafts of several sources may be run together.
            return self._network.fused(torch.zeros(1, 1), torch.tensor(token_ids))
        return self._token_rows[torch.from_numpy(drafted)]

    def settle(self) -> None:
        self._backend.rollback(self._slot)
        self._features = self._features[:1]

    def release(self) -> None:
        self._backend.release(self._slot)
