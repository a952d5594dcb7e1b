"""The kernels in plain torch: the oracle of the Triton ones, and what computes where Triton does not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from models.cuda.kernels import PAGE_ROWS, SPLIT_ROWS, View


class TorchKernels:
    """See PassKernels. Attention sums split by split and merges in order of position, as the Triton kernel does."""

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x if delta is None else x + delta
        return total, _norm(total, weight, eps)

    def rotate_and_store(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        targets: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        kv_heads, width = keys.shape[1:]
        parts = qkv.view(len(qkv), -1, width)
        query, key, value = parts.split([parts.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
        if norms is not None:
            query, key = _norm(query, norms[0], eps), _norm(key, norms[1], eps)
        rotation = cos[positions][:, None], sin[positions][:, None]
        places = targets.long()
        keys[places] = _rotate(key, *rotation)
        values[places] = value
        return _rotate(query, *rotation)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, view: View, window: int | None) -> Tensor:
        rows, heads, width = query.shape
        kv_heads = keys.shape[1]
        grouped = query.view(rows, kv_heads, heads // kv_heads, width).float() * width**-0.5
        largest = grouped.new_full((rows, kv_heads, heads // kv_heads, 1), -torch.inf)
        total, mixed = torch.zeros_like(largest), torch.zeros_like(grouped)
        offsets = torch.arange(SPLIT_ROWS, device=query.device)
        ends = view.ends.long()[:, None]
        starts = torch.zeros_like(ends) if window is None else (ends - window).clamp_min(0)
        for split in range(view.splits):
            position = split * SPLIT_ROWS + offsets
            seen = (position < ends) & (position >= starts)
            place = _places(position, seen, view)
            key, value = keys[place].float(), values[place].float()
            scores = torch.einsum("rhgd,rshd->rhgs", grouped, key)
            # Chosen away, not multiplied by zero: unseen rows may hold NaN.
            scores = torch.where(seen[:, None, None], scores, -torch.inf)
            value = torch.where(seen[:, :, None, None], value, 0.0)
            top = scores.amax(-1, keepdim=True)
            shares = torch.exp(scores - _finite(top))
            after = torch.maximum(largest, top)
            old, new = torch.exp(largest - _finite(after)), torch.exp(top - _finite(after))
            total = total * old + shares.sum(-1, keepdim=True) * new
            # The shares are rounded as the product's other side is: so does the kernel, for its units.
            mixed = mixed * old + torch.einsum("rhgs,rshd->rhgd", shares.to(values.dtype).float(), value) * new
            largest = after
        out = torch.where(total > 0, mixed / total, 0.0)
        return out.to(query.dtype).view(rows, heads * width)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (functional.silu(gate) * up).to(gate_up.dtype)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves: x [R, heads, D], cos and sin float32 [R, 1, D / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _places(position: Tensor, seen: Tensor, view: View) -> Tensor:
    """int64 [R, S]: where the positions lie in the cache, row 0 where they are not seen."""
    prefixes = view.prefixes.long()[:, None]
    page = (position // PAGE_ROWS).expand(len(prefixes), -1)
    cached = view.tables[view.table_of.long()].long().gather(1, page) * PAGE_ROWS + position % PAGE_ROWS
    own = view.paths.long().gather(1, (position - prefixes).clamp(0, view.paths.shape[1] - 1))
    return torch.where(seen, torch.where(position < prefixes, cached, own), 0)


def _finite(top: Tensor) -> Tensor:
    """0 in place of -inf, the maximum of no scores: exp(-inf - 0) is 0 where exp(-inf + inf) is NaN."""
    return torch.where(top == -torch.inf, 0.0, top)
