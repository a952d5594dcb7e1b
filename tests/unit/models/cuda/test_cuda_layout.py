"""Passes are padded to few layouts, each with room for what it holds; graphs are kept by layout while they are used."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.cuda.forward import Outputs
from models.cuda.graphs import GraphCache
from models.cuda.inputs import HostBuffer, PassInputs
from models.cuda.kernels import PAGE_ROWS, SPLIT_ROWS, tile_lines
from models.cuda.layout import ROW_BUCKETS, Layout, layout_of, power_bucket, row_bucket
from models.cuda.rows import PassRows


def small(rows: int = 3, **changes: int) -> Layout:
    sizes = {"sessions": 1, "longest": 40, "deepest": rows, "tiles": 0, "wanted": rows, **changes}
    return layout_of(rows=rows, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "padded"), [(1, 1), (2, 2), (3, 4), (17, 32), (64, 64), (129, 256), (256, 256), (257, 512), (513, 768)]
)
def test_rows_are_padded_to_the_next_bucket_and_beyond_the_last_to_its_multiples(rows: int, padded: int) -> None:
    assert row_bucket(rows) == padded


@pytest.mark.parametrize(("count", "bucket"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1025, 2048)])
def test_other_sizes_are_padded_to_powers_of_two(count: int, bucket: int) -> None:
    assert power_bucket(count) == bucket
    assert power_bucket(count, 64) == max(64, bucket)


def test_growing_contexts_and_trees_of_one_size_share_few_layouts() -> None:
    layouts = {
        small(rows, longest=longest, sessions=sessions, deepest=1 + longest % rows)
        for rows in range(1, 65)
        for longest in range(rows, 4096, 37)
        for sessions in (1, rows)
    }
    # Row buckets up to 64 by context buckets of 1 to 16 splits.
    assert len(layouts) <= 7 * 5


def test_strict_mode_has_one_shape_of_rows_and_of_wanted_rows() -> None:
    shapes = {(one.rows, one.wanted) for n in range(1, 17) for one in [small(n, wanted=n // 2 + 1)]}
    strict = {
        (one.rows, one.wanted)
        for n in range(1, 17)
        for one in [layout_of(rows=n, sessions=1, longest=9, deepest=n, tiles=0, wanted=n // 2 + 1, fixed_rows=16)]
    }
    assert strict == {(16, 16)}
    assert len(shapes) > 4


@pytest.mark.parametrize("deepest", [1, 63, 64, 65, 256, 257, 600])
def test_the_tail_has_room_for_a_path_that_starts_anywhere_in_a_split(deepest: int) -> None:
    layout = small(4, deepest=deepest)
    for prefix in (0, 1, SPLIT_ROWS - 1, SPLIT_ROWS, 5 * SPLIT_ROWS - 1):
        splits = (prefix + deepest - 1) // SPLIT_ROWS - prefix // SPLIT_ROWS + 1
        assert splits <= layout.tail_splits


@pytest.mark.parametrize("group", range(1, 33))
def test_a_tile_holds_whole_rows_and_suits_a_tensor_core(group: int) -> None:
    lines = tile_lines(group)
    assert lines >= 16
    assert lines & (lines - 1) == 0
    assert lines // group >= 1


def rows_of(prefixes: list[int], counts: list[int]) -> PassRows:
    total = sum(counts)
    numbers = np.arange(total)
    table_of = np.repeat(np.arange(len(counts)), counts)
    return PassRows(
        tokens=numbers + 5,
        positions=numbers + 7,
        targets=numbers + 11,
        table_of=table_of,
        prefixes=np.array(prefixes)[table_of],
        ends=np.array(prefixes)[table_of] + 1,
        paths=numbers[:, None] + 11,
        tables=[np.arange(-(-prefix // PAGE_ROWS)) + 100 * index for index, prefix in enumerate(prefixes)],
        wanted=numbers,
        order=None,
    )


def test_tiles_are_runs_of_one_session_with_a_split_to_share() -> None:
    rows = rows_of([SPLIT_ROWS, SPLIT_ROWS - 1, 2 * SPLIT_ROWS], [5, 4, 3])
    assert rows.tiles(0, 12, 2) == ([0, 2, 4, 9, 11], [2, 2, 1, 2, 1])
    assert rows.tiles(3, 10, 4) == ([0, 6], [2, 1])


def test_padding_writes_to_the_scratch_page_and_sees_nothing_whatever_the_buffer_held_before() -> None:
    device = torch.device("cpu")
    host = HostBuffer(device)
    layout = small(5, sessions=2, longest=300, tiles=4)
    inputs = PassInputs(layout, 8, device)
    full = rows_of([300, 20, 280], [3, 3, 2])
    inputs.load(full, 0, 8, (), host, scratch=6400, tile=8)
    inputs.load(full, 3, 8, (), host, scratch=6400, tile=8)
    assert (layout.rows, inputs.tokens.tolist()) == (8, [8, 9, 10, 11, 12, 0, 0, 0])
    assert inputs.view.ends.tolist() == [21, 21, 21, 281, 281, 0, 0, 0]
    assert inputs.targets.tolist() == [14, 15, 16, 17, 18, 6400, 6401, 6402]
    # Sessions are counted from the first row of the part.
    assert inputs.view.table_of.tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert inputs.view.tables[0, :1].tolist() == [100]
    assert inputs.view.tables[1, :5].tolist() == [200, 201, 202, 203, 204]
    assert inputs.view.tile_rows.tolist() == [3, 0, 0, 0]
    assert inputs.view.tile_counts.tolist() == [2, 0, 0, 0]
    assert inputs.wanted_rows.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]


class Recorder:
    """Stands in for captured graphs: notes what is run, and replays by running the pass over the captured inputs."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def eager(self, inputs: PassInputs) -> Outputs:
        self.log.append(f"eager {inputs.layout.rows}")
        return Outputs(inputs.tokens.float(), (), None)

    def capture(self, inputs: PassInputs) -> tuple[Replay, Outputs]:
        self.log.append(f"capture {inputs.layout.rows}")
        outputs = Outputs(torch.zeros(inputs.layout.rows), (), None)
        return Replay(self, inputs, outputs), outputs


class Replay:
    def __init__(self, recorder: Recorder, inputs: PassInputs, outputs: Outputs) -> None:
        self.recorder, self.inputs, self.outputs = recorder, inputs, outputs

    def replay(self) -> None:
        self.recorder.log.append(f"replay {self.inputs.layout.rows}")
        self.outputs.logits.copy_(self.inputs.tokens.float())


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def graphs(recorder: Recorder, limit: int = 8) -> GraphCache:
    device = torch.device("cpu")
    return GraphCache(lambda layout: PassInputs(layout, 8, device), recorder.eager, recorder.capture, limit)


def run(cache: GraphCache, layout: Layout, token: int) -> list[float]:
    def load(inputs: PassInputs) -> None:
        inputs.tokens.fill_(token)

    return [float(value) for value in cache.run(layout, load).logits]


def test_a_layout_runs_eagerly_once_is_captured_once_and_replayed_over_what_was_loaded_last(recorder: Recorder) -> None:
    cache = graphs(recorder)
    assert [run(cache, small(2), token) for token in (3, 4, 5)] == [[3.0, 3.0], [4.0, 4.0], [5.0, 5.0]]
    assert recorder.log == ["eager 2", "capture 2", "replay 2", "replay 2"]
    assert cache.captured == 1


def test_the_layout_that_was_not_used_for_longest_makes_room(recorder: Recorder) -> None:
    cache = graphs(recorder, limit=2)
    for rows in (1, 1, 2, 2, 1, 4, 4, 1, 2):
        run(cache, small(rows), 0)
    assert cache.captured == 1
    # 4 displaced 2, since 1 had been used after it; then 2 displaced 4.
    assert recorder.log[-4:] == ["capture 4", "replay 4", "replay 1", "eager 2"]


def test_passes_beyond_the_last_bucket_are_never_captured(recorder: Recorder) -> None:
    cache = graphs(recorder)
    for _ in range(3):
        run(cache, small(ROW_BUCKETS[-1] + 1), 0)
    assert recorder.log == ["eager 512"] * 3
