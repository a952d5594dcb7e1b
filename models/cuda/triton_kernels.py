"""The Triton kernels behind the interface: what is allocated and launched, with which grids. Imports triton."""

from __future__ import annotations

import torch
from torch import Tensor

from models.cuda.kernels import PAGE_ROWS, SPLIT_ROWS, View, tile_lines
from models.cuda.triton_attention import FAR, attend_split, merge_splits
from models.cuda.triton_rows import add_norm_row, gate_row, rotate_and_store_head

# Said aloud, because its default differs between versions of Triton, which warn of that.
OPTIONS = {"enable_fp_fusion": True}
# Positions multiplied at a time.
_BLOCK = 64
_GATE_BLOCK = 1024
# A tensor core's product is at least this deep.
_LEAST_DEPTH = 16


class TritonKernels:
    """See PassKernels. Inputs are contiguous and on one device; launches only, no wait: all of it can be captured."""

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        rows, hidden = x.shape
        summed = x if delta is None else x.new_empty(x.shape)
        normed = x.new_empty(x.shape)
        add_norm_row[(rows,)](
            x,
            x if delta is None else delta,
            weight,
            summed,
            normed,
            eps,
            HIDDEN=hidden,
            PADDED=_padded(hidden),
            ADD=delta is not None,
            **OPTIONS,
        )
        return summed, normed

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
        rows, lanes = len(qkv), qkv.shape[1] // width
        query = qkv.new_empty((rows, lanes - 2 * kv_heads, width))
        q_norm, k_norm = norms or (qkv, qkv)
        rotate_and_store_head[(rows, lanes)](
            qkv,
            q_norm,
            k_norm,
            cos,
            sin,
            positions,
            targets,
            query,
            keys,
            values,
            eps,
            HEADS=lanes - 2 * kv_heads,
            KV_HEADS=kv_heads,
            WIDTH=width,
            HALF=_padded(width // 2),
            NORM=norms is not None,
            **OPTIONS,
        )
        return query

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, view: View, window: int | None) -> Tensor:
        rows, heads, width = query.shape
        kv_heads = keys.shape[1]
        group, splits = heads // kv_heads, view.splits
        sums = query.new_empty((rows, heads, splits, width), dtype=torch.float32)
        stats = sums.new_empty((rows, heads, splits, 2))
        reach = FAR if window is None else window
        padded = max(_LEAST_DEPTH, _padded(width))
        for tail, grid in ((0, (len(view.tile_rows), kv_heads, splits)), (1, (rows, kv_heads, view.tail_splits))):
            attend_split[grid](
                query,
                keys,
                values,
                view.tables,
                view.paths,
                view.table_of,
                view.prefixes,
                view.ends,
                view.tile_rows,
                view.tile_counts,
                sums,
                stats,
                width**-0.5,
                tail,
                reach,
                view.tables.shape[1],
                view.paths.shape[1],
                splits,
                KV_HEADS=kv_heads,
                GROUP=group,
                WIDTH=width,
                PADDED=padded,
                LINES=tile_lines(group),
                SPLIT=SPLIT_ROWS,
                BLOCK=_BLOCK,
                PAGE=PAGE_ROWS,
                NOWHERE=FAR,
                **OPTIONS,
            )
        out = query.new_empty((rows, heads * width))
        merge_splits[(rows, heads)](
            sums,
            stats,
            view.ends,
            out,
            reach,
            splits,
            HEADS=heads,
            WIDTH=width,
            PADDED=_padded(width),
            SPLIT=SPLIT_ROWS,
            **OPTIONS,
        )
        return out

    def gate(self, gate_up: Tensor) -> Tensor:
        rows, inner = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, inner))
        gate_row[(rows, -(-inner // _GATE_BLOCK))](gate_up, out, INNER=inner, BLOCK=_GATE_BLOCK, **OPTIONS)
        return out


def _padded(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
