"""Builds: the same bytes every time, resumable, without evaluation material, from every kind of source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.errors import FailedPrecondition, InvalidArgument, NotFound
from retriever import documents
from retriever.build import RULES, Recipe, build, build_unit, input_digest, release_of
from retriever.documents import Gap
from retriever.exclusion import NO_EXCLUSION, Verdict, exclusion_of
from retriever.memory_store import MemoryStore
from retriever.publish import publish
from retriever.sources import Kind, Source, plan_units, read_unit

RECIPE = Recipe("PSF-2.0", "tokenizer-1", "none", 256, 32, 16, "0" * 40, "toy")
QUESTION = "What is the largest prime factor of the number 13195 written in base ten"


def by_byte(texts: list[str]) -> Sequence[Sequence[int]]:
    return [list(text.encode()) for text in texts]


def write_files(directory: Path, number: int = 6) -> Source:
    for n in range(number):
        (directory / f"file{n}.txt").write_text(f"file {n}\n" * (n + 3))
    return Source(directory, Kind.TEXT)


def test_two_builds_publish_the_same_bytes_whatever_the_workers(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    units = plan_units([write_files(tmp_path / "in")], 60)
    assert len(units) > 2
    one = build(units, by_byte, RECIPE, tmp_path / "one", workers=1)
    three = build(units, by_byte, RECIPE, tmp_path / "three", workers=3)
    assert one.release == three.release
    assert {d: p.read_bytes() for d, p in one.files.items()} == {d: p.read_bytes() for d, p in three.files.items()}
    assert publish(MemoryStore(), one.release, one.files) == one.release.release_id


def test_units_built_elsewhere_make_the_same_release(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    units = plan_units([write_files(tmp_path / "in")], 60)
    here = build(units, by_byte, RECIPE, tmp_path / "out")
    results = [build_unit(list(read_unit(unit)), by_byte, RECIPE)[0] for unit in reversed(units)]
    assert release_of(results[::-1], RECIPE) == here.release


def test_an_interrupted_build_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    units = plan_units([write_files(tmp_path / "in")], 60)
    calls = []

    def failing(texts: list[str]) -> Sequence[Sequence[int]]:
        calls.append(len(texts))
        if len(calls) == 3:
            raise RuntimeError("power cut")
        return by_byte(texts)

    with pytest.raises(RuntimeError, match="power cut"):
        build(units, failing, RECIPE, tmp_path / "out")
    report = build(units, by_byte, RECIPE, tmp_path / "out")
    assert report.reused == 2
    assert report.release == build(units, by_byte, RECIPE, tmp_path / "fresh").release


def test_progress_counts_units_and_tokens(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    units = plan_units([write_files(tmp_path / "in")], 60)
    seen: list[tuple[int, int, int]] = []
    report = build(units, by_byte, RECIPE, tmp_path / "out", progress=lambda *step: seen.append(step))
    assert [done for done, _, _ in seen] == list(range(1, len(units) + 1))
    assert seen[-1] == (len(units), len(units), report.release.tokens)


def test_segments_are_those_of_the_rules_number_in_the_input_digest() -> None:
    # Where this fails, the bytes have changed: raise RULES, so that nobody reuses what was built before.
    result, _ = build_unit(["some text, some more text", Gap.ABSENT, "and the last"], by_byte, RECIPE)
    assert (RULES, result.segment.digest[:16]) == (2, "5b572c1006b347b5")


def test_what_determines_a_segment_determines_its_input_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = input_digest(["a", "b"], RECIPE, NO_EXCLUSION)
    others = [
        input_digest(["ab"], RECIPE, NO_EXCLUSION),
        input_digest(["a", Gap.UNREADABLE], RECIPE, NO_EXCLUSION),
        input_digest(["a", "b"], Recipe("PSF-2.0", "tokenizer-2", "none", 256, 32, 16, "0", "toy"), NO_EXCLUSION),
        input_digest(["a", "b"], RECIPE, exclusion_of([QUESTION])),
        input_digest(["a", Gap.ABSENT], RECIPE, NO_EXCLUSION),
    ]
    monkeypatch.setattr("retriever.build.RULES", RULES + 1)
    others.append(input_digest(["a", "b"], RECIPE, NO_EXCLUSION))
    assert plain not in others
    assert len(set(others)) == 6


def test_evaluation_material_is_left_out_counted_and_bound(tmp_path: Path) -> None:
    rows = [QUESTION, QUESTION.upper() + "!", f"Some page. {QUESTION}? Answer: 29.", "An unrelated line of text."]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    exclusion = exclusion_of([QUESTION], ngram=8)
    units = plan_units([Source(tmp_path / "in.jsonl", Kind.JSON_LINES)])
    report = build(units, by_byte, RECIPE, tmp_path / "out", exclusion=exclusion)
    assert (report.documents, report.excluded_exact, report.excluded_overlap) == (1, 2, 1)
    assert report.release.manifest.exclusion_sha256 == exclusion.sha256
    assert report.release.tokens == len(rows[3])


def test_overlap_needs_as_many_equal_words_in_a_row_as_asked() -> None:
    words = QUESTION.split()
    exclusion = exclusion_of([QUESTION], ngram=8)
    assert exclusion.verdict("so " + " ".join(words[2:10])) is Verdict.OVERLAP
    assert exclusion.verdict("so " + " ".join(words[2:9]) + " then " + " ".join(words[9:])) is Verdict.KEEP
    assert exclusion.verdict("") is Verdict.KEEP


def test_short_texts_exclude_by_all_their_words_and_very_short_ones_only_exactly() -> None:
    exclusion = exclusion_of(["return the sum of two", "yes"], ngram=13)
    assert exclusion.verdict("please return the sum of two numbers") is Verdict.OVERLAP
    assert exclusion.verdict("Yes.") is Verdict.EXACT
    assert exclusion.verdict("yes and no") is Verdict.KEEP


def test_an_exclusion_is_named_by_its_texts_and_length_not_their_order() -> None:
    assert exclusion_of(["a b", "c"]).sha256 == exclusion_of(["c", "a b"]).sha256
    assert exclusion_of(["a b"]).sha256 != exclusion_of(["a c"]).sha256
    assert exclusion_of(["a b"], 12).sha256 != exclusion_of(["a b"], 13).sha256
    with pytest.raises(InvalidArgument, match="ngram"):
        exclusion_of(["a b"], 4)


def test_a_tokenizer_that_does_not_fit_the_recipe_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="outside the vocabulary"):
        build_unit(["a"], lambda texts: [[256]], RECIPE)
    with pytest.raises(InvalidArgument, match="0 rows for 1 texts"):
        build_unit(["a"], lambda texts: [], RECIPE)


@pytest.mark.parametrize("unit_bytes", [1, 7, 30, 10_000])
def test_json_lines_are_read_once_each_wherever_a_file_is_cut(tmp_path: Path, unit_bytes: int) -> None:
    rows = [f"row {n} " + "x" * n for n in range(12)]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps({"body": row}) for row in rows) + "\n\n")
    units = plan_units([Source(path, Kind.JSON_LINES, field="body")], unit_bytes)
    assert [text for unit in units for text in read_unit(unit)] == rows


def test_long_text_files_are_cut_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(40))
    (tmp_path / "a.txt").write_text(text)
    documents = [d for unit in plan_units([Source(tmp_path, Kind.TEXT)], 50) for d in read_unit(unit)]
    assert len(documents) > 3
    assert all(isinstance(d, str) and d.endswith("\n") for d in documents)
    assert "".join(map(str, documents)) == text


def test_what_is_not_utf8_is_counted_and_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "b.txt").write_bytes(b"fine")
    report = build(plan_units([Source(tmp_path, Kind.TEXT)]), by_byte, RECIPE, tmp_path / "out")
    assert (report.documents, report.unreadable) == (1, 1)


@pytest.mark.parametrize("line", ["{", '"text"', '{"text": 3}', '{"other": "x"}'])
def test_malformed_json_lines_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "in.jsonl").write_text(line + "\n")
    (unit,) = plan_units([Source(tmp_path / "in.jsonl", Kind.JSON_LINES)])
    with pytest.raises(InvalidArgument, match="source"):
        list(read_unit(unit))


def test_missing_and_empty_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"source\.path"):
        plan_units([Source(tmp_path / "none", Kind.TEXT)])
    with pytest.raises(InvalidArgument, match=r"source\.path"):
        plan_units([Source(tmp_path, Kind.JSON_LINES)])


def test_parquet_and_arrow_directories_are_read_in_order(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    rows = [f"row {n}" for n in range(10)]
    table = arrow.table({"text": rows, "n": list(range(10))})
    parquet.write_table(table, tmp_path / "data.parquet", row_group_size=3)
    with arrow.OSFile(str(tmp_path / "data.arrow"), "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    for kind in (Kind.PARQUET, Kind.ARROW):
        units = plan_units([Source(tmp_path, kind)], 1)
        assert len(units) > 2
        assert [text for unit in units for text in read_unit(unit)] == rows
        with pytest.raises(InvalidArgument, match="no column 'body'"):
            list(read_unit(plan_units([Source(tmp_path, kind, field="body")])[0]))
        with pytest.raises(InvalidArgument, match="holds int"):
            list(read_unit(plan_units([Source(tmp_path, kind, field="n")])[0]))


def test_without_pyarrow_parquet_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    (tmp_path / "data.parquet").write_bytes(b"x")
    monkeypatch.setattr(documents.importlib, "import_module", missing)
    with pytest.raises(FailedPrecondition, match="pyarrow"):
        plan_units([Source(tmp_path, Kind.PARQUET)])
