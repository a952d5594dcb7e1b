"""The backend for CPUs: one compiled call per thread and pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from models.backend import BackendInfo, Int64Array, KVSlot, PassResult, RowBlock
from models.config import DecoderConfig
from models.cpu.packing import pack, panels
from models.cpu.records import Floats, Model, Work
from models.cpu.run import PHASES_AT_END, PHASES_PER_LAYER, run
from models.cpu.storage import PanelStorage
from models.cpu.sync import COUNTER_STRIDE
from models.cpu.tile import MAX_TILE_ROWS, PANEL
from models.kv import SlotPool
from models.passes import FINAL_NORM_TAP, Span, plan, tap_layers
from models.weights import DecoderWeights

# Query rows that share a sweep over the keys: two full tiles keep a group's scores within the first-level cache.
_QUERIES_PER_GROUP = 2 * MAX_TILE_ROWS


class CpuDecoder:
    """Backend whose whole pass runs in LLVM-compiled code, without the GIL, on `threads` threads.

    Weights are held in fp32 or bf16; activations, sums, keys and values are fp32 in both cases, so "bfloat16" here means
    weights rounded to bf16 and nothing else. Every row's result is bit for bit independent of the rows beside it, of how
    its context was split into passes, and of the number of threads.
    """

    def __init__(
        self,
        info: BackendInfo,
        config: DecoderConfig,
        weights: DecoderWeights,
        *,
        kv_budget_tokens: int,
        threads: int | None = None,
        poison: bool = False,
    ) -> None:
        self.info = info
        self._config = config
        self._pool: SlotPool[PanelStorage] = SlotPool(kv_budget_tokens, poison=poison)
        self._threads = threads or len(os.sched_getaffinity(0))
        self._helpers = ThreadPoolExecutor(max(1, self._threads - 1), thread_name_prefix="draftproof-pass")
        self._embedding = weights.embedding
        self._model = _model(config, weights)
        cos, sin = config.rope.table(config.context_length)
        self._cos, self._sin = cos.numpy(), sin.numpy()

    def allocate(self, capacity: int) -> KVSlot:
        self._pool.admit(capacity)
        return self._pool.add(capacity, PanelStorage(self._config, capacity))

    def commit(self, slot: KVSlot, keep: Sequence[int]) -> None:
        self._pool.commit(self._pool.own(slot), keep)

    def rollback(self, slot: KVSlot) -> None:
        self._pool.commit(self._pool.own(slot), ())

    def truncate(self, slot: KVSlot, length: int) -> None:
        self._pool.truncate(self._pool.own(slot), length)

    def release(self, slot: KVSlot) -> None:
        self._pool.release(slot)

    def forward(self, blocks: Sequence[RowBlock], *, taps: Sequence[str] = ()) -> PassResult:
        tapped = tap_layers(taps, self._config.num_layers)
        spans = plan(self._pool, self.info, blocks)
        work = self._work(spans, list(tapped.values()))
        for thread in range(1, self._threads):
            self._helpers.submit(run, self._model, work, thread, self._threads)
        run(self._model, work, 0, self._threads)
        for span in spans:
            self._pool.stage(span.slot, span.block)
        hidden = {tap: torch.from_numpy(work.taps[index]) for index, tap in enumerate(tapped)}
        if FINAL_NORM_TAP in taps:
            hidden[FINAL_NORM_TAP] = torch.from_numpy(work.normed)[:, : self._config.hidden_size]
        split = {tap: [rows[span.start : span.stop] for span in spans] for tap, rows in hidden.items()}
        return PassResult(self._split_logits(work.logits, spans), split)

    def _split_logits(self, logits: Floats, spans: Sequence[Span[PanelStorage]]) -> list[Tensor]:
        every = torch.from_numpy(logits)[:, : self._config.vocab_size]
        return list(every.split([len(span.wanted) for span in spans]))

    def _work(self, spans: Sequence[Span[PanelStorage]], tapped: list[int]) -> Work:
        config, threads = self._config, self._threads
        rows = spans[-1].stop
        tokens = np.concatenate([span.block.token_ids for span in spans])
        positions = np.concatenate([span.block.positions for span in spans])
        width, padded = config.head_dim, panels(config.head_dim) * PANEL
        group_rows = max(1, _QUERIES_PER_GROUP // config.group)
        stored = np.array([span.slot.length + len(span.parents) for span in spans], np.int64)
        path_start, paths = _paths(spans)
        x = np.zeros((rows, self._model.norms.shape[1]), np.float32)
        x[:, : config.hidden_size] = self._embedding[torch.from_numpy(tokens)].float().numpy()
        wanted = np.concatenate([span.start + span.wanted for span in spans])
        storages = [_storage(span) for span in spans]
        return Work(
            x=x,
            normed=np.zeros_like(x),
            qkv=_buffer(rows, (config.num_heads + 2 * config.num_kv_heads) * width),
            query=np.zeros((config.num_kv_heads, rows, config.group, padded), np.float32),
            mixed=_buffer(rows, config.num_heads * width),
            inner=_buffer(rows, config.intermediate_size),
            cos=self._cos[positions],
            sin=self._sin[positions],
            row_block=np.repeat(np.arange(len(spans)), [span.stop - span.start for span in spans]),
            row_index=np.concatenate(
                [
                    np.arange(end - (span.stop - span.start), end)
                    for span, end in zip(spans, stored.tolist(), strict=True)
                ]
            ),
            lengths=np.array([span.slot.length for span in spans], np.int64),
            stored=stored,
            keys=np.array([storage.keys.ctypes.data for storage in storages], np.int64),
            values=np.array([storage.values.ctypes.data for storage in storages], np.int64),
            capacities=np.array([storage.capacity for storage in storages], np.int64),
            path_start=path_start,
            paths=paths,
            groups=np.array(
                [
                    (first, min(first + group_rows, span.stop))
                    for span in spans
                    for first in range(span.start, span.stop, group_rows)
                ],
                np.int64,
            ),
            scores=np.empty(
                (threads, group_rows * config.group, panels(int(stored.max()) + PANEL) * PANEL), np.float32
            ),
            heads=np.empty((threads, group_rows * config.group, padded + 1), np.float32),
            turned=np.zeros((threads, padded), np.float32),
            gates=np.empty((threads, MAX_TILE_ROWS, 2 * PANEL), np.float32),
            tap_layers=np.array(tapped, np.int64),
            taps=np.empty((len(tapped), rows, config.hidden_size), np.float32),
            wanted=wanted.astype(np.int64),
            picked=np.empty((len(wanted), x.shape[1]), np.float32),
            logits=np.empty((len(wanted), panels(config.vocab_size) * PANEL), np.float32),
            counters=np.zeros((2, PHASES_PER_LAYER * config.num_layers + PHASES_AT_END, COUNTER_STRIDE), np.int64),
        )


def _buffer(rows: int, width: int) -> Floats:
    return np.empty((rows, panels(width) * PANEL), np.float32)


def _storage(span: Span[PanelStorage]) -> PanelStorage:
    assert span.slot.storage is not None
    return span.slot.storage


def _paths(spans: Sequence[Span[PanelStorage]]) -> tuple[Int64Array, Int64Array]:
    """Start of each row's path, int64 [rows + 1], and all paths: staged ancestors and the row itself, root first."""
    paths: list[Int64Array] = []
    for span in spans:
        known: list[Int64Array] = []
        for row, parent in enumerate(span.parents.tolist()):
            own = np.array([row], np.int64)
            known.append(np.concatenate([known[parent], own]) if parent >= 0 else own)
        paths += known[span.staged_before :]
    ends = np.cumsum([len(path) for path in paths])
    return np.concatenate([[0], ends]).astype(np.int64), np.concatenate(paths)


def _model(config: DecoderConfig, weights: DecoderWeights) -> Model:
    packed = pack(weights, config)
    hidden = config.hidden_size
    norms = np.zeros((2 * config.num_layers + 1, panels(hidden) * PANEL), np.float32)
    flat = [norm for layer in weights.layers for norm in (layer.attention_norm, layer.mlp_norm)]
    norms[:, :hidden] = torch.stack([*flat, weights.final_norm]).float().numpy()
    head_norms = [(layer.q_norm, layer.k_norm) for layer in weights.layers]
    return Model(
        arena=packed.arena,
        offsets=packed.offsets,
        head=packed.head,
        bf16=int(weights.embedding.dtype == torch.bfloat16),
        norms=norms,
        qkv_bias=_stack([layer.qkv_bias for layer in weights.layers]),
        out_bias=_stack([layer.out_bias for layer in weights.layers]),
        head_norms=_stack([None if q is None or k is None else torch.stack([q, k]) for q, k in head_norms], 3),
        windows=np.array([window or 0 for window in config.windows], np.int64),
        hidden=hidden,
        inner=config.intermediate_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=np.float32(config.rms_eps),
        scale=np.float32(config.head_dim**-0.5),
    )


def _stack(tensors: Sequence[Tensor | None], dimensions: int = 2) -> Floats:
    present = [tensor.float() for tensor in tensors if tensor is not None]
    if not present:
        return np.empty((0,) * dimensions, np.float32)
    return np.ascontiguousarray(torch.stack(present).numpy())
