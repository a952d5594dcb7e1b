"""The backend over a Transformers model: one model call a block, its keys and values in our pages.

Slower than the decoders of our own, by much: every call passes through the model's Python, gathers a session's keys and
values, and attends eagerly. What it promises is the contract, not speed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from contracts.errors import InvalidArgument
from models.backend import BackendInfo, PassResult, RowBlock
from models.fallback.attention import TreePass, running
from models.fallback.model import CausalModel, ModelRows
from models.fallback.storage import LayerStorage, PagedCache
from models.kv import SlotPool
from models.passes import FINAL_NORM_TAP, Span, ancestry, depths, plan, tap_layers
from models.pooled import PooledSlots


class TransformersBackend(PooledSlots):
    """PrefixBackend over a `CausalModel`. Makes no claim of row invariance.

    A block's `inputs` take the place of what the model's embedding module gives, before anything the model adds to that
    (learned positions, say); a model that takes no embeddings refuses them.
    """

    def __init__(self, info: BackendInfo, model: CausalModel, *, kv_budget_tokens: int, poison: bool = False) -> None:
        self.info = info
        self._model = model
        self._storage = LayerStorage(model.layer_shapes, kv_budget_tokens, model.dtype, model.device)
        self._pool = SlotPool(kv_budget_tokens, self._storage, poison=poison)

    @torch.inference_mode()
    def forward(self, blocks: Sequence[RowBlock], *, taps: Sequence[str] = ()) -> PassResult:
        tapped = tap_layers(taps, self.info.num_layers)
        self._model.check_taps(taps)
        if any(block.inputs is not None for block in blocks) and not self._model.takes_inputs:
            raise InvalidArgument("blocks.inputs", f"{self.info.family} takes tokens only")
        spans = plan(self._pool, self.info, blocks)
        ran = [self._run(span, tapped.values()) for span in spans]
        # Only now: a call that fails stages nothing in any slot.
        for span in spans:
            self._pool.stage(span.slot, span.block)
        hidden = {tap: [rows.final.float() for rows in ran] for tap in taps if tap == FINAL_NORM_TAP}
        hidden |= {tap: [rows.layers[layer].float() for rows in ran] for tap, layer in tapped.items()}
        return PassResult([rows.logits for rows in ran], hidden)

    def _run(self, span: Span, layers: Collection[int]) -> ModelRows:
        device, block = self._model.device, span.block
        count, length = span.stop - span.start, span.slot.length
        seen = ancestry(span.parents)[span.staged_before :]
        visible = np.concatenate([np.ones((count, length), np.bool_), seen], axis=1)
        keys = np.concatenate([np.arange(length), length + np.array(depths(span.parents.tolist()), np.int64)])
        positions = torch.from_numpy(np.asarray(block.positions, np.int64)).to(device)
        tree_pass = TreePass(positions, torch.from_numpy(keys).to(device), torch.from_numpy(visible).to(device))
        cache = PagedCache(self._storage, self._storage.place(span.slot, len(keys)), count)
        rows: Tensor = torch.from_numpy(np.asarray(block.token_ids, np.int64)).to(device)
        if block.inputs is not None:
            rows = block.inputs.to(device, self._model.dtype)
        with running(tree_pass):
            return self._model(rows, positions, cache, torch.from_numpy(span.wanted).to(device), layers)
