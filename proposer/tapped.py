"""A source that reads the target's hidden rows, as its host sees it: its declaration names the taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from contracts.capability import SourceDescription
from contracts.manifest import Manifest
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal
from proposer.source import Source


class Tapped:
    """Implements Source over `source`, which reads `taps`."""

    def __init__(self, source: Source, taps: Sequence[str]) -> None:
        self._source = source
        self._description = replace(source.describe(), taps=tuple(taps))

    @property
    def runs_inline(self) -> bool:
        return self._source.runs_inline

    def describe(self) -> SourceDescription:
        return self._description

    def open(self, session_id: str, manifest: Manifest) -> None:
        self._source.open(session_id, manifest)

    def propose(self, request: ProposeRequest) -> Proposal:
        return self._source.propose(request)

    def close(self, session_id: str) -> None:
        self._source.close(session_id)
