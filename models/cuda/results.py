"""What a pass gives back, gathered from the buffers that the next pass overwrites."""

from __future__ import annotations

import torch
from torch import Tensor

from models.backend import Int64Array
from models.config import DecoderConfig
from models.cuda.forward import Outputs


class Results:
    """Of one pass at a time: `begin`, `take` for each part of it, `end`.

    on_host: results are copied to memory of their own, pinned where there is a GPU, and `end` waits for the copies; else
    they stay on the device, copied there, and nothing is waited for.
    """

    def __init__(self, device: torch.device, *, on_host: bool) -> None:
        self._device = device
        self._where = torch.device("cpu") if on_host else device
        # Pinned memory is kept and handed out again by torch, so that asking for it every pass costs little.
        self._pinned = on_host and device.type == "cuda"

    def begin(self, rows: int, wanted: int, taps: int, config: DecoderConfig) -> None:
        self._logits = self._empty(wanted, config.vocab_size)
        self._hidden = [self._empty(rows, config.hidden_size) for _ in range(taps)]
        self._rows = self._wanted = 0

    def take(self, outputs: Outputs, rows: int, wanted: int) -> None:
        """The first `rows` rows and `wanted` logits of a pass; the rest is padding."""
        self._logits[self._wanted : self._wanted + wanted].copy_(outputs.logits[:wanted], non_blocking=True)
        every = outputs.taps if outputs.normed is None else (*outputs.taps, outputs.normed)
        for kept, made in zip(self._hidden, every, strict=True):
            kept[self._rows : self._rows + rows].copy_(made[:rows], non_blocking=True)
        self._rows += rows
        self._wanted += wanted

    def end(self, order: Int64Array | None) -> tuple[Tensor, list[Tensor]]:
        """Logits as asked for, and hidden rows a tap. order: see PassRows."""
        if self._pinned:
            torch.cuda.current_stream(self._device).synchronize()
        logits = self._logits
        if order is not None:
            logits = logits[torch.from_numpy(order).to(logits.device)]
        return logits, self._hidden

    def _empty(self, rows: int, width: int) -> Tensor:
        return torch.empty((rows, width), dtype=torch.float32, device=self._where, pin_memory=self._pinned)
