"""What a pass computes besides matrix products: the interface of its kernels, and the sizes both implementations share.

`models.cuda.torch_kernels` is the reference, on any device; `models.cuda.triton_kernels` is what runs on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

# Rows of a page of the cache; docs/decisions/0012-prefix-sharing.md says why so few.
PAGE_ROWS = 64
# Positions that are summed together. Splits begin at multiples of it, whoever owns the rows: a sum's order is a matter of
# positions alone (docs/decisions/0016-cuda-graphs.md).
SPLIT_ROWS = 256


@dataclass(frozen=True)
class View:
    """What each row of a pass sees: the positions [0, end) of its own path, in order. All tensors int32, on the device.

    Position p of row r lies in the cache's row `tables[table_of[r], p // PAGE_ROWS] * PAGE_ROWS + p % PAGE_ROWS` where
    p < prefixes[r], else in the cache's row `paths[r, p - prefixes[r]]`. A row with end 0 is padding and sees nothing.

    table_of, prefixes, ends: [R]. tables: [tables, pages]. paths: [R, depth].
    tile_rows, tile_counts: [tiles], runs of rows of one session that read the whole splits of their prefix together; a run
        has at most `tile_lines(group) // group` rows, a count of 0 is padding.
    splits: upper bound of the splits that any row sees. tail_splits: upper bound of those not wholly within its prefix.
    """

    table_of: Tensor
    prefixes: Tensor
    ends: Tensor
    tables: Tensor
    paths: Tensor
    tile_rows: Tensor
    tile_counts: Tensor
    splits: int
    tail_splits: int


def tile_lines(group: int) -> int:
    """Query lines (a row's heads over one key-value head) that a tile of the attention multiplies at once."""
    padded = 1 << max(0, group - 1).bit_length()
    return max(16, min(64, 8 * padded), padded)


class PassKernels(Protocol):
    """R rows, H hidden, D head_dim. Products and sums in float32 inside each, results rounded to the inputs' dtype."""

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x + delta [R, H] (x itself without delta), and its RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467)."""
        ...

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
        """The rotated queries [R, heads, D]; rotated keys and the values go to rows `targets` of the cache.

        qkv: [R, (heads + 2 * kv_heads) * D]. norms: weights [D] of the queries' and keys' RMSNorm. cos, sin: float32 tables
        [context, D / 2]. positions, targets: int32 [R]. keys, values: [rows, kv_heads, D], written to.
        """
        ...

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, view: View, window: int | None) -> Tensor:
        """Attention of each row over its path, [R, heads * D]; 0 for padding. Scores are scaled by D ** -0.5.

        query: [R, heads, D]. keys, values: [rows, kv_heads, D]; rows that nobody sees may hold anything. window: how many of
        the last positions a row sees, None for all.
        """
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, [R, I], of the stacked products [R, 2 * I]."""
        ...
