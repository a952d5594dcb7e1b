"""The backend for CPUs: one compiled call per thread and pass."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from models.backend import BackendInfo, Int64Array, PassResult, RowBlock
from models.config import DecoderConfig
from models.cpu.buffers import ModelBuffers, WorkBuffers
from models.cpu.embedding import embedding_table
from models.cpu.formats import FORMATS
from models.cpu.records import Model
from models.cpu.run import run
from models.cpu.storage import PagedStorage
from models.cpu.weights import CpuWeights
from models.kv import SlotPool
from models.passes import FINAL_NORM_TAP, plan, tap_layers
from models.pooled import PooledSlots


class CpuDecoder(PooledSlots):
    """Backend whose whole pass runs in LLVM-compiled code, without the GIL, on `threads` threads.

    Weights are held in `info.dtype`: fp32, bf16, or codes of eight or four bits with scales (models/quantized.py).
    Activations, sums, keys and values are fp32 in all cases: "bfloat16" here means weights rounded to bf16 and nothing else,
    and what is computed from codes is bit for bit what fp32 weights of their values give. Every row's result is bit for bit
    independent of the rows beside it, of how its context was split into passes, and of the number of threads.
    """

    def __init__(
        self,
        info: BackendInfo,
        config: DecoderConfig,
        weights: CpuWeights,
        *,
        kv_budget_tokens: int,
        threads: int | None = None,
        poison: bool = False,
    ) -> None:
        self.info = info
        self._config = config
        self._storage = PagedStorage(config, kv_budget_tokens)
        self._pool = SlotPool(kv_budget_tokens, self._storage, poison=poison)
        self._threads = threads or len(os.sched_getaffinity(0))
        self._helpers = ThreadPoolExecutor(max(1, self._threads - 1), thread_name_prefix="draftproof-pass")
        self._embedding = embedding_table(weights.embedding)
        self._model = ModelBuffers(config, weights.passes, FORMATS[info.dtype], self._threads)
        cos, sin = config.rope.table(config.context_length)
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._compile()

    def forward(self, blocks: Sequence[RowBlock], *, taps: Sequence[str] = ()) -> PassResult:
        tapped = tap_layers(taps, self._config.num_layers)
        spans = plan(self._pool, self.info, blocks)
        tokens = _joined([span.block.token_ids for span in spans])
        positions = _joined([span.block.positions for span in spans])
        hidden, vocab = self._config.hidden_size, self._config.vocab_size
        x = np.zeros((len(tokens), self._model.record.hidden_stride), np.float32)
        x[:, :hidden] = self._embedding.rows(tokens)
        for span in spans:
            if span.block.inputs is not None:
                x[span.start : span.stop, :hidden] = span.block.inputs.numpy()
        cos, sin = self._cos[positions], self._sin[positions]
        work = WorkBuffers(
            self._model.record,
            spans,
            self._storage,
            x,
            cos,
            sin,
            list(tapped.values()),
            self._threads,
            outputs=FINAL_NORM_TAP in taps,
        )
        for thread in range(1, self._threads):
            self._helpers.submit(_help, self._model.record, work, thread, self._threads)
        run(self._model.record, work.record, 0, self._threads)
        for span in spans:
            self._pool.stage(span.slot, span.block)
        rows = {tap: work.taps[index] for index, tap in enumerate(tapped)}
        if FINAL_NORM_TAP in taps:
            rows[FINAL_NORM_TAP] = work.normed
        # Cut by numpy: what torch does first after a pass costs many times what it costs in a loop.
        split = {
            tap: [torch.from_numpy(every[span.start : span.stop, :hidden]) for span in spans]
            for tap, every in rows.items()
        }
        ends = list(itertools.accumulate((len(span.wanted) for span in spans), initial=0))
        logits = [torch.from_numpy(work.logits[first:last, :vocab]) for first, last in itertools.pairwise(ends)]
        return PassResult(logits, split)

    def _compile(self) -> None:
        """Run one row, so that compiling (or reading what is cached) belongs to loading, not to the first request."""
        slot = self.allocate(1)
        zero = np.zeros(1, np.int64)
        self.forward([RowBlock(slot, zero, zero, np.array([-1]))])
        self.commit(slot, [0])
        self.release(slot)


def _joined(parts: Sequence[Int64Array]) -> Int64Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _help(model: Model, work: WorkBuffers, thread: int, threads: int) -> None:
    """A helper may start after the pass is over: holding `work` keeps the counters that tell it so."""
    run(model, work.record, thread, threads)
