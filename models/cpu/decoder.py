"""The backend for CPUs: one compiled call per thread and pass."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from models.backend import BackendInfo, PassResult, RowBlock
from models.config import DecoderConfig
from models.cpu.buffers import ModelBuffers, WorkBuffers
from models.cpu.embedding import embedding_table
from models.cpu.formats import FORMATS
from models.cpu.helpers import Helpers
from models.cpu.preparing import run_at
from models.cpu.storage import PagedStorage
from models.cpu.weights import CpuWeights
from models.host_rows import HostRows
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
        self._helpers = Helpers(self._threads - 1, "draftproof-pass")
        self._model = ModelBuffers(config, weights.passes, FORMATS[info.dtype], self._threads)
        cos, sin = (table.numpy() for table in config.rope.table(config.context_length))
        embedding = embedding_table(weights.embedding)
        self._work = WorkBuffers(self._model, self._storage, cos, sin, embedding, self._threads)
        self._compile()

    def forward(self, blocks: Sequence[RowBlock], *, taps: Sequence[str] = ()) -> PassResult:
        tapped = tap_layers(taps, self._config.num_layers)
        spans = plan(self._pool, self.info, blocks)
        if not spans:
            return PassResult(HostRows(()), {tap: HostRows(()) for tap in taps})
        outputs = FINAL_NORM_TAP in taps
        work = self._work.prepare(spans, list(tapped.values()), outputs=outputs)
        model, threads = self._model.place, self._threads

        def help_out(thread: int, place: int = work.place, _kept: object = work.memory) -> None:
            # One that comes late must find its own pass over: it keeps what the record lies in.
            run_at(model, place, thread, threads)

        self._helpers.hand_out(help_out, threads - 1)
        run_at(model, work.place, 0, threads)
        for span in spans:
            self._pool.stage(span.slot, span.block)
        hidden = {}
        for tap, rows in zip((*tapped, FINAL_NORM_TAP) if outputs else tapped, work.taps, strict=True):
            hidden[tap] = HostRows([rows[span.start : span.stop, : self._config.hidden_size] for span in spans])
        logits, first = [], 0
        for span in spans:
            last = first + len(span.wanted_list)
            logits.append(work.logits[first:last, : self._config.vocab_size])
            first = last
        return PassResult(HostRows(logits), hidden)

    def _compile(self) -> None:
        """Run one row, so that compiling (or reading what is cached) belongs to loading, not to the first request."""
        slot = self.allocate(1)
        zero = np.zeros(1, np.int64)
        self.forward([RowBlock(slot, zero, zero, np.array([-1]))])
        self.commit(slot, [0])
        self.release(slot)
