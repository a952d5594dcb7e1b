"""Drafting with an EAGLE head: its layer over fused rows, compiled with the matrices around it, with staged KV of its own.

Fused row i (feature i with token i + 1) is a pure function of the published tokens up to i + 1, so the state after any round
is the longest common prefix of what was run and what was published. Rows made from predicted features live as staged rows
for one round only and are run anew from the target's rows once these are published: no ghost rows, and no missing row after
full acceptance.

A step reads each weight once: the fusing matrix (features and token in one product), the layer, the draft vocabulary's
rows. At bf16 and the shipped head's sizes that is 13 MB, which bounds a level from below.

Trees by value also draft tokens that the draft vocabulary lacks and the session's own text has: names and rare words come
back, and on prompts that are summarised or asked about they are most of what a reduced vocabulary misses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.errors import Internal, InvalidArgument
from models.cpu.draft_block import TargetRows
from models.cpu.draft_buffers import NONE_FURTHER, FurtherTokens
from models.cpu.draft_layer import DraftLayer
from models.cpu.draft_packing import FurtherRows, stored_in
from models.quantized import GROUP
from models.weights import DecoderWeights
from proposer.heads.eagle import EagleNetwork
from proposer.heads.head import ROUND_ROWS, Floats, Grown, HiddenStates, Int64Array, arrays_of, common_length
from proposer.heads.prefix import backend_layer
from proposer.heads.vocabulary import DraftVocabulary

# Fused rows of one prefill pass: bounds the pass's own memory.
_PREFILL_ROWS = 128
# Tokens of its own that a session drafts at most: those that its text has first.
MOST_FURTHER = 1024


class EagleHead:
    """Implements DraftHead. dtype: of all weights while drafting (models.cpu.draft_packing.DRAFT_DTYPES): bf16 halves what
    is read, int8 halves it again; a layer whose sizes are no whole groups drafts in bf16 instead. target_head: the target's
    rows of its whole vocabulary [V, H], for tokens of a session's own; None: these are not drafted.
    """

    max_depth = None

    def __init__(
        self,
        network: EagleNetwork,
        vocabulary: DraftVocabulary,
        *,
        dtype: torch.dtype = torch.bfloat16,
        kv_budget_tokens: int = 16384,
        threads: int | None = None,
        poison: bool = False,
        target_head: Tensor | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        sizes = network.shape.config
        if dtype == torch.int8 and (sizes.hidden_size % GROUP or sizes.intermediate_size % GROUP):
            dtype = torch.bfloat16
        self._target_head = None if target_head is None else FurtherRows(target_head, dtype)
        self.network = network.eval().requires_grad_(False)
        quantised, dtype = dtype == torch.int8, stored_in(dtype)
        head = network.head.to(dtype)
        weights = DecoderWeights(
            embedding=head,
            layers=(backend_layer(network.layer, dtype),),
            final_norm=network.norm.detach().to(dtype),
            head=head,
        )
        first = network.again if network.first is None else network.first
        real, drafted = (torch.cat([half, network.token], dim=1).detach().to(dtype) for half in (first, network.again))
        eps = network.shape.config.rms_eps
        table = _table_of(network.embedding)
        self._embedded = _rows_of(table)
        config = replace(network.shape.config, vocab_size=len(vocabulary), num_layers=1, windows=(None,))
        self._layer = DraftLayer(
            config,
            weights,
            real,
            drafted,
            _rms(self._embedded(vocabulary.ids), eps),
            table,
            kv_budget_tokens=kv_budget_tokens,
            quantised=quantised,
            threads=threads,
            poison=poison,
        )

    @property
    def taps(self) -> tuple[str, ...]:
        return self.network.shape.taps

    def open(self, capacity: int) -> EagleSession:
        eps = self.network.shape.config.rms_eps
        own = None if self._target_head is None else self._further
        return EagleSession(self._layer, self.taps, eps, self._embedded, capacity, self.vocabulary, own)

    def _further(self, tokens: Int64Array) -> FurtherTokens:
        assert self._target_head is not None
        embedded = _rms(self._embedded(tokens), self.network.shape.config.rms_eps)
        return self._layer.further(self._target_head.panels_of(tokens), embedded)


class EagleSession:
    """Implements GrowingSession.

    embedded: the target's embeddings of tokens int64 [N], float32 [N, H]. further: what the layer needs to draft tokens
    int64 [F] beside the vocabulary; None: it does not. Raises ResourceExhausted where the layer has no `capacity` rows left.
    """

    def __init__(
        self,
        layer: DraftLayer,
        taps: Sequence[str],
        eps: float,
        embedded: Callable[[Int64Array], Floats],
        capacity: int,
        vocabulary: DraftVocabulary,
        further: Callable[[Int64Array], FurtherTokens] | None = None,
    ) -> None:
        self._layer, self._taps, self._eps, self._embedded = layer, tuple(taps), eps, embedded
        self._vocabulary, self._further_of = vocabulary, further
        # Tokens of the text so far that the vocabulary lacks, in the order in which they came, and how much was looked at.
        self._own: dict[int, None] = {}
        self._looked_at, self._further = 0, NONE_FURTHER
        self._slot = layer.allocate(capacity)
        # The first row that is run, the slot's row 0: that of the states.
        self._base = 0
        # The tokens of the fused rows run so far: token i + 1 of row i, behind token 0.
        self._tokens: Int64Array = np.zeros(0, np.int64)
        # Row 0 is the anchor's, row s + 1 that of staged row s.
        self._features: Floats = np.zeros((0, 0), np.float32)

    @property
    def rows(self) -> int:
        """Fused rows held, staged ones aside."""
        return self._slot.length

    def behind(self, prefix_len: int) -> int:
        return prefix_len - 1 - self._base - self._slot.length

    def catch_up(self, prefix: Int64Array, states: HiddenStates) -> None:
        self._look_at(prefix)
        total = len(prefix) - 1
        kept = self._keep(prefix, total, states.base)
        if kept < total:
            self._run_on(prefix, kept, self._fused(prefix, kept, states), wanted=0)

    def follow(self, prefix: Int64Array, states: HiddenStates) -> Tensor:
        kept = self._kept_of(prefix, states.base)
        logits, features = self._run_on(prefix, kept, self._fused(prefix, kept, states), wanted=1)
        self._features = features[-1:]
        return torch.from_numpy(logits[0])

    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor:
        above = np.asarray(parents, np.int64)
        halves = [_rms(self._features[above + 1], self._eps), self._token_half(np.asarray(token_ids, np.int64))]
        fused = np.concatenate(halves, axis=1)
        logits, features = self._layer.run(self._slot, fused, above, start=self._base, drafted=True, wanted=len(fused))
        self._features = np.concatenate([self._features, features])
        return torch.from_numpy(logits)

    def grow(self, prefix: Int64Array, states: HiddenStates, *, width: int, depth: int, floor: float) -> Grown:
        kept = self._kept_of(prefix, states.base)
        ahead = max(0, len(prefix) - 1 - kept - ROUND_ROWS)
        given: Floats | TargetRows
        if ahead:
            # A pass at a time, ahead of the tree.
            fused = self._fused(prefix, kept, states)
            self._run_on(prefix[: kept + ahead + 1], kept, fused[:ahead], wanted=0)
            given = fused[ahead:]
        else:
            given = TargetRows(self._hidden(states, kept, len(prefix) - 1), prefix[kept + 1 :])
            self._layer.truncate(self._slot, kept - self._base)
        self._tokens = prefix[: kept + ahead + 1].copy()
        self._look_at(prefix)
        grown = self._layer.grow(
            self._slot,
            given,
            start=self._base,
            width=width,
            depth=depth,
            least=math.log(floor) if floor > 0.0 else -math.inf,
            further=self._further,
        )
        self._tokens = prefix.copy()
        if not all(map(math.isfinite, grown.values)):
            raise Internal("logits", "the head's logits are not finite")
        return Grown(self._targets(grown.tokens), grown.parents, grown.depths, grown.values)

    def settle(self) -> None:
        self._layer.rollback(self._slot)
        self._features = self._features[:1]

    def release(self) -> None:
        self._layer.release(self._slot)

    def _look_at(self, prefix: Int64Array) -> None:
        """Takes in what the text has brought. What another text left may stay: it costs time, never correctness."""
        if self._further_of is None or len(prefix) <= self._looked_at:
            return
        fresh = prefix[self._looked_at :]
        self._looked_at = len(prefix)
        held = self._vocabulary.held
        for token in fresh.tolist():
            if not held[token] and len(self._own) < MOST_FURTHER:
                self._own.setdefault(token)
        if len(self._own) > self._further.count:
            self._further = self._further_of(np.array(list(self._own), np.int64))

    def _targets(self, drafted: Sequence[int]) -> list[int]:
        """Target ids of what the layer numbers, tokens of the session's own behind the vocabulary's."""
        size, ids = len(self._vocabulary), self._vocabulary.listed
        own = list(self._own) if max(drafted) >= size else []
        return [own[index - size] if index >= size else ids[index] for index in drafted]

    def _kept_of(self, prefix: Int64Array, base: int) -> int:
        """How many rows of `prefix` stay. The last is always run anew, because rows are kept and logits are not."""
        if len(prefix) < 2:
            raise InvalidArgument("prefix", "needs two tokens: the first has no feature before it")
        return self._keep(prefix, len(prefix) - 2, base)

    def _keep(self, prefix: Int64Array, most: int, base: int) -> int:
        """How many of the rows stay, those before the base counted though they never were run."""
        if base != self._base:
            self._base, self._tokens = base, self._tokens[:0]
        return min(max(common_length(self._tokens, prefix) - 1, base), most)

    def _fused(self, prefix: Int64Array, kept: int, states: HiddenStates) -> Floats:
        """What is fused into the rows of `prefix` past the first `kept`, float32 [N, R]."""
        parts = [*self._hidden(states, kept, len(prefix) - 1), self._embedded(prefix[kept + 1 :])]
        # Divided by their root mean squares all at once: a round's few rows cost what numpy's calls do.
        rows = np.stack(parts, axis=1)
        return _rms(rows.reshape(-1, rows.shape[2]), self._eps).reshape(len(rows), -1)

    def _hidden(self, states: HiddenStates, start: int, stop: int) -> list[Floats]:
        """Each tap's rows [start, stop)."""
        hidden = arrays_of(states, start, stop)
        return [hidden[tap] for tap in self._taps]

    def _run_on(self, prefix: Int64Array, kept: int, fused: Floats, *, wanted: int) -> tuple[Floats, Floats]:
        """Runs and keeps those rows, of which there is one at least; gives what the last pass gave."""
        self._layer.truncate(self._slot, kept - self._base)
        self._tokens = prefix[: kept + 1].copy()
        total = kept + len(fused)
        for start in range(kept, total, _PREFILL_ROWS):
            part = fused[start - kept : start - kept + _PREFILL_ROWS]
            stop = start + len(part)
            read = wanted if stop == total else 0
            given = self._layer.run(self._slot, part, np.arange(-1, len(part) - 1), start=self._base, wanted=read)
            self._layer.commit_all(self._slot)
            self._tokens = prefix[: stop + 1].copy()
        return given

    def _token_half(self, tokens: Int64Array) -> Floats:
        return _rms(self._embedded(tokens), self._eps)


def _rms(x: Floats, eps: float) -> Floats:
    """x divided by its root mean square along the last axis."""
    mean = np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1])
    out: Floats = x * (1.0 / np.sqrt(mean + np.float32(eps)))[:, None]
    return out


def _table_of(table: Tensor) -> npt.NDArray[Any]:
    """A table [V, H] for reading without torch, whose threads would contend with the layer's: bits of bf16, or float32."""
    if table.dtype != torch.bfloat16:
        whole: Floats = table.float().contiguous().numpy()
        return whole
    return table.contiguous().view(torch.int16).numpy().view(np.uint16)


def _rows_of(table: npt.NDArray[Any]) -> Callable[[Int64Array], Floats]:
    """float32 rows of such a table."""
    if table.dtype != np.uint16:
        return lambda ids: table[ids]
    return lambda ids: (table[ids].astype(np.uint32) << np.uint32(16)).view(np.float32)
