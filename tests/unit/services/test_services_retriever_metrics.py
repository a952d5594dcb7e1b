"""The retriever's gauges say what is wrong with its store while it serves on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from contracts.errors import Unavailable
from contracts.retrieval import PublishedOutput
from retriever.library import Library
from retriever.live import LiveLibrary
from retriever.memory_store import MemoryStore
from retriever.retriever import Retriever
from services.retriever_service import metrics
from services.retriever_service.live_policies import parse_policies
from tests.unit.retriever.corpora import TRACE, put_up

Readings = dict[tuple[str, str], float]


def readings(reader: InMemoryMetricReader) -> Readings:
    """Every gauge's values by name and label."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        (metric.name, next(iter(dict(point.attributes or {}).values()), "")): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_gauges_follow_the_store_down_and_up_and_name_a_release_that_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    library = Library(store, tmp_path)
    live = LiveLibrary(store, parse_policies('{"py": {"tenants": ["a"]}}'), library.tokenizers)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics.observe(library, live, provider.get_meter("test"))
    put_up(store, "py", [TRACE])
    library.poll()
    Retriever(library, live).record(PublishedOutput("py", "a", "r", np.array([4, 5])))
    live.poll()
    found = readings(reader)
    assert found[metrics.STORE_CONNECTED, ""] == 1
    assert found[metrics.SWAPS, ""] == 1
    assert found[metrics.RESIDENT_BYTES, "py"] == library.status().indexes["py"].resident_bytes > 0
    assert found[metrics.WAITING_RELEASES, "py"] == 0
    ((scope, newest),) = live.status().newest.items()
    assert found[metrics.LIVE_ENTRIES, scope] == newest > 0
    assert found[metrics.LIVE_RESTARTS, scope] == 0

    def gone(*_: object) -> None:
        raise Unavailable("store", "gone")

    with monkeypatch.context() as patched:
        patched.setattr(store, "aliases", gone)
        library.poll()
        assert readings(reader)[metrics.STORE_CONNECTED, ""] == 0
        assert readings(reader)[metrics.FROM_LOCAL_COPY, ""] == 0

    put_up(store, "py", [[1, 2]], byte_order="big")
    library.poll()
    found = readings(reader)
    assert found[metrics.STORE_CONNECTED, ""] == 1
    assert found[metrics.WAITING_RELEASES, "py"] == 1
    assert found[metrics.SWAPS, ""] == 1
    provider.shutdown()
