"""Static shapes: the sizes that a pass is padded to, so that few different passes exist and each can be captured once.

A pass of n rows runs as one of the next larger bucket; so do its sessions, the splits of its contexts, the rows whose logits
are wanted and the depth of its trees. What differs between two passes of one layout is only what the buffers hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.cuda.kernels import PAGE_ROWS, SPLIT_ROWS

# Passes of more rows are rounded up to whole multiples of the last, and not captured.
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Ancestors of a row, itself included, that the shallowest layout has room for.
_SHALLOWEST = 64


def row_bucket(rows: int) -> int:
    """The rows that a pass of `rows` >= 1 rows is padded to."""
    largest = ROW_BUCKETS[-1]
    return next((size for size in ROW_BUCKETS if rows <= size), -(-rows // largest) * largest)


def power_bucket(count: int, least: int = 1) -> int:
    """The least power of two that is at least `count` and `least`; `least` is one too."""
    return max(least, 1 << max(0, count - 1).bit_length())


@dataclass(frozen=True)
class Layout:
    """All sizes of a pass, each padded: the key under which its graph is kept.

    rows: of the pass. tables: sessions. splits: of SPLIT_ROWS positions, as many as the longest context has. depth: room for
    a row's own ancestors, itself included. tiles: groups of rows that read a prefix together. wanted: rows with logits.
    taps: layers whose output is wanted, ascending. normed: the final norm's output is wanted. given: some rows come as
    vectors instead of tokens.
    """

    rows: int
    tables: int
    splits: int
    depth: int
    tiles: int
    wanted: int
    taps: tuple[int, ...] = ()
    normed: bool = False
    given: bool = False

    @property
    def table_pages(self) -> int:
        """Pages of a block table."""
        return self.splits * (SPLIT_ROWS // PAGE_ROWS)

    @property
    def tail_splits(self) -> int:
        """Splits that a row's own part of its context may touch: it starts anywhere in the first of them."""
        return (SPLIT_ROWS + self.depth - 2) // SPLIT_ROWS + 1

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """Shape of each int32 input, in the order in which they lie in the buffer. See models.cuda.inputs."""
        return {
            "tokens": (self.rows,),
            "positions": (self.rows,),
            "targets": (self.rows,),
            "table_of": (self.rows,),
            "prefixes": (self.rows,),
            "ends": (self.rows,),
            "given_rows": (self.rows,),
            "tile_rows": (self.tiles,),
            "tile_counts": (self.tiles,),
            "wanted_rows": (self.wanted,),
            "tables": (self.tables, self.table_pages),
            "paths": (self.rows, self.depth),
        }


def layout_of(
    *,
    rows: int,
    sessions: int,
    longest: int,
    deepest: int,
    tiles: int,
    wanted: int,
    taps: tuple[int, ...] = (),
    normed: bool = False,
    given: bool = False,
    fixed_rows: int | None = None,
) -> Layout:
    """The layout that holds a pass of these sizes.

    longest: positions of the longest context, this pass's rows included. deepest: most ancestors of a row, itself included.
    fixed_rows: the one row bucket of strict mode, which the wanted rows are padded to as well: matrix products of one shape.
    """
    padded = fixed_rows or row_bucket(rows)
    if wanted:
        wanted = fixed_rows or row_bucket(wanted)
    return Layout(
        rows=padded,
        # As many as there can be, so that passes of one size share a layout however many sessions they are of.
        tables=padded if padded <= ROW_BUCKETS[-1] else power_bucket(sessions),
        splits=power_bucket(-(-longest // SPLIT_ROWS)),
        depth=power_bucket(deepest, _SHALLOWEST),
        tiles=power_bucket(tiles),
        wanted=wanted,
        taps=taps,
        normed=normed,
        given=given,
    )
