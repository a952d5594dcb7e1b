"""Prompt lookup: copy what followed an earlier occurrence of the prefix's last tokens (M7.7 section 0x04A).

The longest n-gram with an admissible occurrence wins (under `one_edit` the strongest occurrence). Which occurrences are
admissible, and which of them is taken, are settings, because published matchers differ (L: prefix length, n: n-gram,
k: tokens wanted, s: where a continuation starts):

    rule      continuation  takes the                  admissible if            as in
    latest    clipped       last occurrence            s <= L - n (no overlap)  M7.7 section 0x04A
    latest    full_length   last occurrence            that and s + k <= L
    earliest  clipped       first occurrence           s < L                    Transformers 5.24
    earliest  full_length   first occurrence           s < L - n, s + k <= L    the original prompt-lookup-decoding
    one_edit  either        strongest, then longest,   as under latest          docs/decisions/0013
                            then last occurrence

The strength of an occurrence is its n-gram's length, and half of what matched before it once an edit is forgiven
(proposer/match_strength.py). It chooses only; how much is copied and what is reported go by the length.

How much is copied may grow with how much matched: `spec_factor` candidates per matched token (SuffixDecoding,
arXiv 2411.04975, section 4: a longer match makes each further token likelier to hold, and every candidate costs a row).

A copied continuation has no probability: semantics are absent and the relation is a deterministic lookup, so only
verifiers that need no q may consume it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from time import perf_counter_ns
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from contracts.capability import SourceDescription
from contracts.errors import InvalidArgument
from contracts.manifest import Manifest
from contracts.options import SourceOption, check_options
from contracts.ports import ProposeRequest
from contracts.proposal import MAX_NODES, Proposal, ProposalNode, SourceCost, StateHandle
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from proposer.match_strength import strongest
from proposer.source import KIND, version_of
from proposer.suffix_scan import suffix_occurrences

MAX_NGRAM = 64
MAX_BRANCHES = 16
MAX_SPEC_FACTOR = 64
# Repetitive text has thousands of occurrences with the same continuation; looking at more of them finds little.
_OCCURRENCES_PER_BRANCH = 32

Rule = Literal["latest", "earliest", "one_edit"]
Continuation = Literal["full_length", "clipped"]


@dataclass(frozen=True)
class PromptLookupSettings:
    """What the source does unless a request's options say otherwise.

    branches: how many distinct continuations to offer; above 1 they form a tree, longest match first, then by `rule`.
    max_nodes: the largest offer. spec_factor: the most tokens copied per matched token; 0 copies up to the budget whatever
    matched.
    Raises InvalidArgument for values that make no matcher.
    """

    rule: Rule = "latest"
    continuation: Continuation = "clipped"
    min_ngram: int = 1
    max_ngram: int = 3
    branches: int = 1
    max_nodes: int = 64
    spec_factor: int = 0

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise InvalidArgument("prompt_lookup.rule", f"{self.rule!r} is none of {', '.join(get_args(Rule))}")
        if self.continuation not in ("full_length", "clipped"):
            raise InvalidArgument(
                "prompt_lookup.continuation", f"{self.continuation!r} is neither 'full_length' nor 'clipped'"
            )
        for name, low, value, high in (
            ("min_ngram", 1, self.min_ngram, self.max_ngram),
            ("max_ngram", self.min_ngram, self.max_ngram, MAX_NGRAM),
            ("branches", 1, self.branches, MAX_BRANCHES),
            ("max_nodes", 1, self.max_nodes, MAX_NODES),
            ("spec_factor", 0, self.spec_factor, MAX_SPEC_FACTOR),
        ):
            if not low <= value <= high:
                raise InvalidArgument(f"prompt_lookup.{name}", f"{value} is outside [{low}, {high}]")


@dataclass(frozen=True, slots=True)
class Match:
    """An occurrence: its continuation starts at `start`, it repeats the last `length` tokens, `count` share that length."""

    start: int
    length: int
    count: int


def ranked_matches(
    prefix: npt.NDArray[np.int64],
    *,
    rule: Rule,
    continuation: Continuation,
    min_ngram: int,
    max_ngram: int,
    wanted: int,
) -> Iterator[Match]:
    """Admissible occurrences, best first: by descending n-gram, then by `rule`; each occurrence once. Under `one_edit` those
    of which the strength was looked at come first, then all others as under `latest`.

    prefix: int64 [L]. `wanted`: the continuation's full length.
    """
    size = len(prefix)
    seen: set[int] = set()
    if rule == "one_edit":
        occurrences = strongest(prefix, min_ngram, max_ngram, _last_start(rule, continuation, size, 1, wanted))
        for start, length in occurrences:
            seen.add(start)
            yield Match(start, length, sum(other == length for _, other in occurrences))
    levels = suffix_occurrences(prefix, max_ngram)
    for length in range(len(levels), min_ngram - 1, -1):
        starts = levels[length - 1]
        count = int(np.searchsorted(starts, _last_start(rule, continuation, size, length, wanted), side="right"))
        order = range(count) if rule == "earliest" else range(count - 1, -1, -1)
        for index in order:
            start = int(starts[index])
            if start not in seen:
                seen.add(start)
                yield Match(start, length, count)


def _last_start(rule: Rule, continuation: Continuation, size: int, length: int, wanted: int) -> int:
    """The last admissible start of a continuation, by the table above."""
    if rule == "earliest" and continuation == "clipped":
        return size - 1
    if continuation == "clipped":
        return size - length
    overlap_free = size - length if rule != "earliest" else size - length - 1
    return min(overlap_free, size - wanted)


def distinct(continuations: Iterable[list[int]], branches: int) -> list[list[int]]:
    """The first `branches` continuations of which none begins with another; the longer of two such stands for both."""
    kept: list[list[int]] = []
    for candidate in continuations:
        for index, other in enumerate(kept):
            shared = min(len(candidate), len(other))
            if candidate[:shared] == other[:shared]:
                kept[index] = max(other, candidate, key=len)
                break
        else:
            if len(kept) == branches:
                break
            kept.append(candidate)
    return kept


def grow(continuations: Sequence[Sequence[int]], node_budget: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of the tree of all continuations, shared beginnings merged.

    The budget is dealt in rank order: each continuation may add its even share of what is left, rounded up.
    """
    tokens: list[int] = []
    parents: list[int] = []
    row_of: dict[tuple[int, int], int] = {}
    for index, sequence in enumerate(continuations):
        left, sharers = node_budget - len(tokens), len(continuations) - index
        share = (left + sharers - 1) // sharers
        parent = -1
        for token in sequence:
            row = row_of.get((parent, token))
            if row is None:
                if share == 0:
                    break
                share -= 1
                row = row_of[parent, token] = len(tokens)
                tokens.append(token)
                parents.append(parent)
            parent = row
    return tokens, parents


def _length(match: Match, spec_factor: int, wanted: int) -> int:
    return min(wanted, spec_factor * match.length) if spec_factor else wanted


def continuation_of(prefix: npt.NDArray[np.int64], settings: PromptLookupSettings, wanted: int) -> list[int]:
    """What followed the best occurrence, at most `wanted` tokens: what a source of one branch copies; empty without any."""
    ranked = ranked_matches(
        prefix,
        rule=settings.rule,
        continuation=settings.continuation,
        min_ngram=settings.min_ngram,
        max_ngram=settings.max_ngram,
        wanted=wanted,
    )
    match = next(iter(ranked), None) if wanted > 0 else None
    if match is None:
        return []
    length = _length(match, settings.spec_factor, wanted)
    return [*prefix[match.start : match.start + length].tolist()]


class PromptLookup:
    """The source `prompt_lookup`. Keeps nothing between calls."""

    runs_inline = True

    def __init__(self, settings: PromptLookupSettings | None = None, *, name: str = "prompt_lookup") -> None:
        self._settings = settings or PromptLookupSettings()
        self._description = SourceDescription(
            name=name,
            kind=KIND,
            version=version_of("prompt_lookup", asdict(self._settings)),
            semantics=ProbabilitySemantics.ABSENT,
            relation=SamplingRelation.DETERMINISTIC_LOOKUP,
            topology=Topology.SEQUENCE if self._settings.branches == 1 else Topology.TREE,
            max_nodes=self._settings.max_nodes,
            options=(
                SourceOption("min_ngram", 1, MAX_NGRAM, self._settings.min_ngram),
                SourceOption("max_ngram", 1, MAX_NGRAM, self._settings.max_ngram, not_below="min_ngram"),
                SourceOption("branches", 1, self._settings.branches, self._settings.branches),
                SourceOption("spec_factor", 0, MAX_SPEC_FACTOR, self._settings.spec_factor),
            ),
        )

    def describe(self) -> SourceDescription:
        return self._description

    def open(self, session_id: str, manifest: Manifest) -> None:
        """Nothing to prepare."""

    def close(self, session_id: str) -> None:
        """Nothing to give back."""

    def propose(self, request: ProposeRequest) -> Proposal:
        """See `Source.propose`."""
        started = perf_counter_ns()
        settings = self._settings
        options = request.options
        if options:
            check_options(options, self._description.options)
        min_ngram = options.get("min_ngram", settings.min_ngram)
        max_ngram = options.get("max_ngram", max(min_ngram, settings.max_ngram))
        branches = options.get("branches", settings.branches)
        spec_factor = options.get("spec_factor", settings.spec_factor)
        budget = min(request.node_budget, settings.max_nodes)
        wanted = min(budget, request.max_depth)
        matches: list[Match] = []
        if wanted:
            ranked = ranked_matches(
                request.prefix,
                rule=settings.rule,
                continuation=settings.continuation,
                min_ngram=min_ngram,
                max_ngram=max_ngram,
                wanted=wanted,
            )
            matches = list(islice(ranked, 1 if branches == 1 else branches * _OCCURRENCES_PER_BRANCH))
        continuations = (
            request.prefix[match.start : match.start + _length(match, spec_factor, wanted)].tolist()
            for match in matches
        )
        tokens, parents = grow(distinct(continuations, branches), budget)
        name = self._description.name
        nodes: list[ProposalNode] = []
        for token, parent in zip(tokens, parents, strict=True):
            depth = 1 if parent < 0 else nodes[parent].depth + 1
            nodes.append(ProposalNode(token, parent, depth, name, name))
        best = matches[0] if matches else Match(0, 0, 0)
        return Proposal(
            source=name,
            nodes=tuple(nodes),
            semantics=self._description.semantics,
            relation=self._description.relation,
            topology=self._description.topology,
            round_hash=request.manifest.hash,
            state=StateHandle(name, 0, len(request.prefix)),
            cost=SourceCost(
                compute_us=(perf_counter_ns() - started) / 1e3,
                match_length=best.length,
                match_count=best.count,
                miss=not matches,
            ),
        )
