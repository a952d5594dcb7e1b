"""What a retriever's metrics say: its store, its swaps, its memory. Read when a collector asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from retriever.library import Library
from retriever.library_status import LibraryStatus
from retriever.live import LiveLibrary

SCOPE = "draftproof.retriever"
STORE_CONNECTED = "draftproof.retriever.store_connected"
FROM_LOCAL_COPY = "draftproof.retriever.from_local_copy"
SWAPS = "draftproof.retriever.swaps"
RESIDENT_BYTES = "draftproof.retriever.resident_bytes"
WAITING_RELEASES = "draftproof.retriever.releases_not_loaded"
LIVE_ENTRIES = "draftproof.retriever.live_sequence"
LIVE_RESTARTS = "draftproof.retriever.live_restarts"
LIVE_UNREADABLE = "draftproof.retriever.live_unreadable_entries"
LABEL_INDEX = "index"
LABEL_SCOPE = "scope"

Rows = Iterable[tuple[float, Mapping[str, str]]]


def observe(library: Library, live: LiveLibrary | None, meter: Meter | None = None) -> None:
    """Registers the gauges. They do nothing while no collector is configured."""
    meter = meter or metrics.get_meter(SCOPE)

    def gauge(name: str, unit: str, description: str, rows: Callable[[LibraryStatus], Rows]) -> None:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, dict(labels)) for value, labels in rows(library.status())]

        meter.create_observable_gauge(name, [callback], unit, description)

    gauge(STORE_CONNECTED, "1", "The last exchange with the store worked", lambda s: [(int(s.store_connected), {})])
    gauge(FROM_LOCAL_COPY, "1", "Serving from this disk since the start", lambda s: [(int(s.from_local_copy), {})])
    gauge(SWAPS, "{swap}", "Releases put in place since the start", lambda s: [(s.swaps, {})])
    gauge(
        RESIDENT_BYTES,
        "By",
        "Bytes of the releases in memory",
        lambda s: [(index.resident_bytes, {LABEL_INDEX: name}) for name, index in s.indexes.items()],
    )
    gauge(
        WAITING_RELEASES,
        "1",
        "The store points to a release that could not be loaded",
        lambda s: [(int(bool(index.error)), {LABEL_INDEX: name}) for name, index in s.indexes.items()],
    )
    if live is None:
        return
    known = live
    gauge(
        LIVE_ENTRIES,
        "1",
        "Sequence number of the newest entry of the live stream that is indexed",
        lambda _: [(newest, {LABEL_SCOPE: scope}) for scope, newest in known.status().newest.items()],
    )
    gauge(
        LIVE_UNREADABLE,
        "{entry}",
        "Entries of the live stream that could not be read",
        lambda _: [(count, {LABEL_SCOPE: scope}) for scope, count in known.status().unreadable.items()],
    )
    gauge(
        LIVE_RESTARTS,
        "{restart}",
        "Times that the store held another live stream than the one read before",
        lambda _: [(count, {LABEL_SCOPE: scope}) for scope, count in known.status().restarts.items()],
    )
