"""Files that are damaged, gone, half text or no corpus at all: each is counted, passed over or refused by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import DataLoss, InvalidArgument, NotFound
from retriever.build import Recipe, build, build_unit
from retriever.build_notes import BuildNotes
from retriever.documents import Gap
from retriever.exclusion import exclusion_of
from retriever.source_files import Source, files_of, passed_over
from retriever.sources import Kind, plan_units, read_unit, unit_bytes_for

RECIPE = Recipe("PSF-2.0", "tokenizer-1", "none", 256, 32, 16, "0" * 40, "toy")


def by_byte(texts: list[str]) -> Sequence[Sequence[int]]:
    return [list(text.encode()) for text in texts]


def documents(source: Source) -> list[Any]:
    return [document for unit in plan_units([source], 1 << 20) for document in read_unit(unit)]


def write_arrow(path: Path, rows: Sequence[str | None]) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    table = arrow.table({"text": arrow.array(rows, arrow.string())})
    path.parent.mkdir(parents=True, exist_ok=True)
    with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def save_data_set(directory: Path, rows: Sequence[str], **state: object) -> None:
    """As `datasets.Dataset.save_to_disk` does, with the cache that a later `map` leaves beside it."""
    write_arrow(directory / "data-00000-of-00001.arrow", rows)
    write_arrow(directory / "cache-1b2c3d.arrow", rows)
    record = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "x", **state}
    (directory / "state.json").write_text(json.dumps(record))


def test_half_a_surrogate_pair_is_counted_and_the_build_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b'{"text": "ok"}\n{"text": "bad \\ud800 x"}\n{"text": "bad \xff"}\n{"text": null}\n{"text": "ok"}\n'
    )
    assert documents(Source(path, Kind.JSON_LINES)) == ["ok", Gap.UNREADABLE, Gap.UNREADABLE, Gap.ABSENT, "ok"]
    report = build(plan_units([Source(path, Kind.JSON_LINES)]), by_byte, RECIPE, tmp_path / "out")
    assert (report.documents, report.unreadable, report.absent) == (2, 2, 1)


def test_nulls_of_parquet_and_arrow_are_counted_and_skipped(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    rows = ["a", None, "b"]
    parquet.write_table(arrow.table({"text": rows}), tmp_path / "in.parquet")
    write_arrow(tmp_path / "in.arrow", rows)
    for kind in (Kind.PARQUET, Kind.ARROW):
        assert documents(Source(tmp_path, kind)) == ["a", Gap.ABSENT, "b"]


def test_a_row_that_is_not_utf8_costs_no_other_row(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    bad = arrow.array([b"a", b"\xff", b"b"], arrow.binary()).view(arrow.string())
    parquet.write_table(arrow.table({"text": bad}), tmp_path / "in.parquet")
    assert documents(Source(tmp_path, Kind.PARQUET)) == ["a", Gap.UNREADABLE, "b"]


@pytest.mark.parametrize("kind", [Kind.PARQUET, Kind.ARROW])
@pytest.mark.parametrize("content", [b"", b"PAR1 not really", b"x" * 4_000])
def test_a_damaged_file_is_data_loss_that_names_it(tmp_path: Path, kind: Kind, content: bytes) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    path = tmp_path / f"in.{kind.value}"
    path.write_bytes(content)
    with pytest.raises(DataLoss, match=str(path)):
        plan_units([Source(path, kind)])


def test_a_file_cut_short_after_its_plan_is_data_loss_and_one_gone_is_not_found(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    write_arrow(tmp_path / "in.arrow", [f"row {n}" for n in range(1_000)])
    (tmp_path / "in.txt").write_text("text")
    (arrow_unit,) = plan_units([Source(tmp_path, Kind.ARROW)])
    (text_unit,) = plan_units([Source(tmp_path, Kind.TEXT)])
    (tmp_path / "in.arrow").write_bytes((tmp_path / "in.arrow").read_bytes()[:900])
    (tmp_path / "in.txt").unlink()
    with pytest.raises(DataLoss, match=r"in\.arrow"):
        list(read_unit(arrow_unit))
    with pytest.raises(NotFound, match=r"in\.txt"):
        list(read_unit(text_unit))


def test_json_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(InvalidArgument, match="not JSON"):
        documents(Source(tmp_path / "in.jsonl", Kind.JSON_LINES))


def test_a_saved_data_set_is_the_files_that_it_names_and_no_cache(tmp_path: Path) -> None:
    save_data_set(tmp_path / "set", ["one", "two"])
    source = Source(tmp_path / "set", Kind.ARROW)
    assert documents(source) == ["one", "two"]
    assert passed_over(source) == {".arrow": 1, ".json": 1}
    assert unit_bytes_for([source]) > 0
    (tmp_path / "set" / "state.json").unlink()
    assert documents(source) == ["one", "two"]


def test_one_of_several_splits_must_be_chosen(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save_data_set(tmp_path / split, [split])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InvalidArgument, match=r"source\.splits.*several splits.*train, test"):
        documents(Source(tmp_path, Kind.ARROW))
    assert documents(Source(tmp_path, Kind.ARROW, splits=("train",))) == ["train"]
    assert sorted(documents(Source(tmp_path, Kind.ARROW, splits=("train", "test")))) == ["test", "train"]
    with pytest.raises(InvalidArgument, match="has no dev"):
        documents(Source(tmp_path, Kind.ARROW, splits=("dev",)))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    save_data_set(tmp_path / "train", ["train"])
    assert "train" in documents(Source(tmp_path, Kind.ARROW))


def test_splits_are_refused_where_there_are_none(tmp_path: Path) -> None:
    save_data_set(tmp_path, ["one"])
    (tmp_path / "a.txt").write_text("text")
    for kind in (Kind.ARROW, Kind.TEXT):
        with pytest.raises(InvalidArgument, match=r"source\.splits"):
            files_of(Source(tmp_path, kind, splits=("train",)))


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ({"_data_files": [{"filename": "gone.arrow"}]}, NotFound),
        ({"_data_files": [3]}, InvalidArgument),
        ({"_data_files": 3}, InvalidArgument),
        ({"_indices_data_files": [{"filename": "x"}]}, InvalidArgument),
    ],
)
def test_a_data_set_whose_state_does_not_fit_is_refused(
    tmp_path: Path, state: dict[str, object], error: type[Exception]
) -> None:
    save_data_set(tmp_path, ["one"], **state)
    with pytest.raises(error, match="source"):
        files_of(Source(tmp_path, Kind.ARROW))


@pytest.mark.parametrize("content", ["{", "[]", '{"splits": 3}', '{"splits": [1]}'])
def test_an_unreadable_list_of_splits_is_refused(tmp_path: Path, content: str) -> None:
    save_data_set(tmp_path / "train", ["one"])
    (tmp_path / "dataset_dict.json").write_text(content)
    with pytest.raises(InvalidArgument, match="dataset_dict"):
        files_of(Source(tmp_path, Kind.ARROW))


def test_which_files_of_a_directory_are_taken_can_be_said_and_the_others_are_counted(tmp_path: Path) -> None:
    for name in ("a.py", "b.js", "c.c", "d.c", "Makefile"):
        (tmp_path / name).write_text(name)
    assert documents(Source(tmp_path, Kind.TEXT)) == ["a.py"]
    assert passed_over(Source(tmp_path, Kind.TEXT)) == {".c": 2, ".js": 1, "": 1}
    chosen = Source(tmp_path, Kind.TEXT, suffixes=("js", ".c"))
    assert documents(chosen) == ["b.js", "c.c", "d.c"]
    assert passed_over(chosen) == {".py": 1, "": 1}
    assert not passed_over(Source(tmp_path / "a.py", Kind.TEXT))


def test_an_excluded_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="excluded"):
        exclusion_of(["bad \ud800 text"])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"segment": {}}', '{"segment": {"digest": "x"}, "new": 1}'])
def test_a_note_that_cannot_be_read_costs_building_its_unit_again(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text("some text")
    units = plan_units([Source(tmp_path / "a.txt", Kind.TEXT)])
    first = build(units, by_byte, RECIPE, tmp_path / "out")
    (note,) = (tmp_path / "out").glob("*.json")
    assert len(BuildNotes(tmp_path / "out").everything()) == 1
    note.write_text(content)
    assert BuildNotes(tmp_path / "out").everything() == {}
    again = build(units, by_byte, RECIPE, tmp_path / "out")
    assert (again.release, again.reused) == (first.release, 0)


def test_a_note_without_the_newer_counts_is_read(tmp_path: Path) -> None:
    result, _ = build_unit(["some text"], by_byte, RECIPE)
    notes = BuildNotes(tmp_path)
    notes.put(result)
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    del record["absent"]
    path.write_text(json.dumps(record))
    assert notes.get(result.input_sha256) == result
