"""`draftproof index build --ray` on a real Ray cluster of this machine: the bytes of the one-machine build."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import FailedPrecondition, InvalidArgument
from retriever.build import build
from retriever.exclusion import exclusion_of
from retriever.publish import segment_chunks
from retriever.redis_store import RedisStore
from retriever.sources import Kind, Source, plan_units
from services.indexing import OnRay, build_index, recipe_for
from services.jobs.ray_cluster import LOCAL, ray_cluster
from services.redis_embedded import EmbeddedRedis, embedded_redis

pytest.importorskip("ray", reason="needs ray")
SECRET = "the evaluation question that nobody may ever find in the index of this test"
UNIT_BYTES = 2_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("corpus") / "rows.jsonl"
    rows = [f"row {n} says " + " ".join(f"word{(n * 7 + k) % 50}" for k in range(20)) for n in range(60)]
    rows[17] = f"A page that repeats {SECRET} in the middle."
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return Source(path, Kind.JSON_LINES)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with embedded_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two cores of this machine as a cluster; builds in this process use the connection."""
    with ray_cluster(LOCAL, cores=2):
        yield


@pytest.mark.usefixtures("cluster")
def test_ray_publishes_the_bytes_of_the_one_machine_build_and_resumes(
    corpus: Source, redis: EmbeddedRedis, tiny_checkpoint_directory: Path, tmp_path: Path
) -> None:
    recipe, tokenizer = recipe_for(tiny_checkpoint_directory, "CC0")
    units = plan_units([corpus], UNIT_BYTES)
    assert len(units) > 3
    here = build(units, tokenizer.encode_documents, recipe, tmp_path / "here", exclusion=exclusion_of([SECRET]))
    store = RedisStore(redis.url)
    try:
        steps: list[tuple[str, int, int]] = []
        for turn in range(2):
            built = build_index(
                store,
                "rows",
                [corpus],
                tiny_checkpoint_directory,
                tmp_path / "ray",
                licence="CC0",
                excluded=[SECRET],
                on_ray=OnRay(LOCAL, redis.url),
                unit_bytes=UNIT_BYTES,
                progress=lambda *step: steps.append(step),
            )
            assert built.report.release == here.release
            assert built.alias.release_id == here.release.release_id
            assert built.report.excluded_overlap == 1
            assert built.report.reused == (0 if turn == 0 else len(units))
        for entry in here.release.segments:
            assert b"".join(segment_chunks(store, entry)) == here.files[entry.digest].read_bytes()
        assert ("building", len(units), len(units)) in steps
        # A task's refusal arrives as the typed error that it was.
        with pytest.raises(InvalidArgument, match=r"source\.field"):
            build_index(
                store,
                "rows",
                [Source(corpus.path, Kind.JSON_LINES, field="body")],
                tiny_checkpoint_directory,
                tmp_path / "ray",
                licence="CC0",
                on_ray=OnRay(LOCAL, redis.url),
                progress=lambda *_: None,
            )
    finally:
        store.close()


def test_a_cluster_that_is_not_there_is_unavailable_and_a_wrong_address_refused() -> None:
    script = "from services.jobs.ray_cluster import ray_cluster\nwith ray_cluster({!r}): pass"
    for address, error in (("127.0.0.1:1", "Unavailable: ray"), ("nonsense", "InvalidArgument: ray")):
        done = subprocess.run(
            [sys.executable, "-c", script.format(address)], capture_output=True, text=True, check=False
        )
        assert f"contracts.errors.{error}" in done.stderr


def test_without_ray_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FailedPrecondition, match="draftproof\\[ray\\]"), ray_cluster(LOCAL):
        pass
