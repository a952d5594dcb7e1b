"""The candidate graph of a round: several proposals merged by full prefix into unique rows, every draw remembered.

Merging makes unique *rows* (equal full prefixes are one target computation). Each parent also keeps the ordered list of
*draws* that led to its children, duplicates kept, because verifiers with q walk draws, not rows
(docs/decisions/0004-merging.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contracts.draft_law import DraftLaw, check_law
from contracts.errors import InvalidArgument
from contracts.proposal import Proposal
from contracts.topology import (
    ANCHOR,
    ProbabilitySemantics,
    SamplingRelation,
    Topology,
    check_parents,
    depths_listed,
    shape_of,
)


class Draw(NamedTuple):
    """One draw at `parent` (a row, -1: the anchor) that landed on `row`. `law` indexes the graph's laws, -1: none."""

    parent: int
    row: int
    source: str
    law: int = -1


@dataclass(frozen=True, init=False)
class CandidateGraph:
    """Rows with parents before children, every full prefix unique.

    token_list, parent_list: by row. `sources[r]` names all sources that offered row r. `draws` is the concatenation of the
    proposals' draws in plan order. Numbers may be given as arrays; they are kept and sent as plain ones, since a round has
    few and looks through them row by row.
    """

    token_list: list[int]
    parent_list: list[int]
    sources: tuple[tuple[str, ...], ...]
    draws: tuple[Draw, ...]
    laws: tuple[DraftLaw, ...] = ()
    semantics: frozenset[ProbabilitySemantics] = frozenset()
    relations: frozenset[SamplingRelation] = frozenset()

    def __init__(
        self,
        token_ids: list[int] | npt.NDArray[np.int64] | None = None,
        parents: list[int] | npt.NDArray[np.int64] | None = None,
        sources: tuple[tuple[str, ...], ...] = (),
        draws: tuple[Draw, ...] = (),
        laws: tuple[DraftLaw, ...] = (),
        semantics: frozenset[ProbabilitySemantics] = frozenset(),
        relations: frozenset[SamplingRelation] = frozenset(),
        *,
        token_list: Sequence[int] = (),
        parent_list: Sequence[int] = (),
    ) -> None:
        """token_list, parent_list: in place of the first two, as `dataclasses.replace` names them."""
        # Past the frozen record's __setattr__, which is a call for each.
        fields = self.__dict__
        fields["token_list"] = token_ids if isinstance(token_ids, list) else _listed(token_ids, token_list)
        fields["parent_list"] = parents if isinstance(parents, list) else _listed(parents, parent_list)
        fields["sources"] = sources
        fields["draws"] = draws
        fields["laws"] = laws
        fields["semantics"] = semantics
        fields["relations"] = relations

    def __len__(self) -> int:
        return len(self.token_list)

    @cached_property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """`token_list` as int64 [N]."""
        return np.array(self.token_list, dtype=np.int64)

    @cached_property
    def parents(self) -> npt.NDArray[np.int64]:
        """`parent_list` as int64 [N]."""
        return np.array(self.parent_list, dtype=np.int64)

    @cached_property
    def depths(self) -> npt.NDArray[np.int64]:
        """int64 [N], 1 for the anchor's children."""
        return np.array(self.depth_list, dtype=np.int64)

    @cached_property
    def depth_list(self) -> list[int]:
        """`depths` as numbers."""
        return depths_listed(self.parent_list)

    @property
    def deepest(self) -> int:
        """The largest depth; 0 without candidates."""
        return max(self.depth_list, default=0)

    @cached_property
    def topology(self) -> Topology:
        """The narrowest topology the draws fit."""
        return shape_of([draw.parent for draw in self.draws], self.parent_list)

    @cached_property
    def children(self) -> Mapping[int, Mapping[int, int]]:
        """Per parent row (-1: the anchor) a mapping from token id to child row."""
        out: dict[int, dict[int, int]] = {}
        for row, (token, parent) in enumerate(zip(self.token_list, self.parent_list, strict=True)):
            out.setdefault(parent, {})[token] = row
        return out

    @cached_property
    def draws_at(self) -> Mapping[int, tuple[Draw, ...]]:
        """Per parent row (-1: the anchor) its draws in order."""
        out: dict[int, list[Draw]] = {}
        for draw in self.draws:
            out.setdefault(draw.parent, []).append(draw)
        return {parent: tuple(draws) for parent, draws in out.items()}


def _listed(array: npt.NDArray[np.int64] | None, numbers: Sequence[int]) -> list[int]:
    return [*(numbers if array is None else array.tolist())]


EMPTY_GRAPH = CandidateGraph([], [], (), ())


def merge_by_full_prefix(proposals: Sequence[Proposal], *, budget: int) -> CandidateGraph:
    """Merges offers in the order given; rows are numbered as first seen.

    `budget` bounds candidates, the anchor not counted. Offers without laws stop adding rows at the budget. Offers with
    laws lose a suffix of their *draws* instead, counted before duplicates merge, so that what is kept does not depend on
    the values drawn (dropping by value would change the law; docs/decisions/0004-merging.md).
    """
    if budget < 0:
        raise InvalidArgument("node_budget", f"{budget} is negative")
    offered = [proposal for proposal in proposals if proposal.nodes]
    if not offered:
        return EMPTY_GRAPH
    if len(offered) == 1:
        alone = _of_one(offered[0], budget)
        if alone is not None:
            return alone
    tokens: list[int] = []
    parents: list[int] = []
    sources: list[tuple[str, ...]] = []
    draws: list[Draw] = []
    laws: list[DraftLaw] = []
    row_of: dict[tuple[int, int], int] = {}
    with_law = any(proposal.laws for proposal in offered)
    for proposal in offered:
        source, of_parent = proposal.source, proposal.laws
        names = (source,)
        law_index: dict[int, int] = {}
        node_row: dict[int, int] = {ANCHOR: ANCHOR}
        for index, (token, above, _, _, _, _, _) in enumerate(proposal.nodes):
            parent = node_row.get(above)
            if parent is None:
                continue
            place = (parent, token)
            row = row_of.get(place)
            if len(draws) >= budget if with_law else (row is None and len(tokens) >= budget):
                continue
            if row is None:
                row = row_of[place] = len(tokens)
                tokens.append(token)
                parents.append(parent)
                sources.append(names)
            elif source not in sources[row]:
                sources[row] = (*sources[row], source)
            node_row[index] = row
            law = of_parent.get(above) if of_parent else None
            if law is not None and above not in law_index:
                law_index[above] = len(laws)
                laws.append(law)
            draws.append(Draw(parent, row, source, law_index.get(above, -1)))
    return CandidateGraph(
        tokens,
        parents,
        tuple(sources),
        tuple(draws),
        tuple(laws),
        frozenset([proposal.semantics for proposal in offered]),
        frozenset([proposal.relation for proposal in offered]),
    )


def _of_one(proposal: Proposal, budget: int) -> CandidateGraph | None:
    """The only offer, where its nodes are the rows: no laws, within the budget, no full prefix twice. None for others."""
    nodes, source = proposal.nodes, proposal.source
    if proposal.laws or len(nodes) > budget:
        return None
    tokens: list[int] = []
    parents: list[int] = []
    draws: list[Draw] = []
    places: set[tuple[int, int]] = set()
    for token, parent, _, _, _, _, _ in nodes:
        places.add((parent, token))
        draws.append(Draw(parent, len(tokens), source))
        tokens.append(token)
        parents.append(parent)
    if len(places) < len(nodes):
        return None
    return CandidateGraph(
        tokens,
        parents,
        ((source,),) * len(nodes),
        tuple(draws),
        (),
        frozenset((proposal.semantics,)),
        frozenset((proposal.relation,)),
    )


def keep_rows(graph: CandidateGraph, rows: Sequence[int]) -> CandidateGraph:
    """The graph of some of its rows (ascending, each with its ancestors), renumbered, with the draws that led to them.

    Only for graphs without laws: with laws, dropping rows by what was drawn changes the output's law. Raises InvalidArgument
    for a graph with laws and for a row whose parent is left out.
    """
    if graph.laws:
        raise InvalidArgument("graph.laws", "rows of a graph with laws are dropped by draw order only")
    tokens, parents, sources, kept = graph.token_list, graph.parent_list, graph.sources, len(rows)
    if kept and rows[-1] == kept - 1:
        # The first rows keep their numbers, and parents stand before their children.
        tokens, parents, sources = tokens[:kept], parents[:kept], sources[:kept]
        draws = [draw for draw in graph.draws if draw[1] < kept]
    else:
        number = {ANCHOR: ANCHOR}
        for row in rows:
            if parents[row] not in number:
                raise InvalidArgument("rows", f"row {row} is kept without its parent {parents[row]}")
            number[row] = len(number) - 1
        draws = [Draw(number[above], number[row], name, law) for above, row, name, law in graph.draws if row in number]
        tokens = [tokens[row] for row in rows]
        parents = [number[parents[row]] for row in rows]
        sources = tuple([sources[row] for row in rows])
    return CandidateGraph(tokens, parents, sources, tuple(draws), (), graph.semantics, graph.relations)


def check_graph(graph: CandidateGraph, *, vocab_size: int, max_rows: int) -> None:
    """The row validator: raises InvalidArgument naming the field for anything a verification pass could not trust."""
    n = len(graph)
    if n > max_rows:
        raise InvalidArgument("graph.token_ids", f"{n} rows, at most {max_rows}")
    if len(graph.parent_list) != n or len(graph.sources) != n:
        raise InvalidArgument(
            "graph.parents", f"{len(graph.parent_list)} parents and {len(graph.sources)} sources for {n} rows"
        )
    if not (n or graph.draws or graph.laws):
        return
    tokens, parents = graph.token_list, graph.parent_list
    check_parents(parents, "graph.rows")
    if n and (min(tokens) < 0 or max(tokens) >= vocab_size):
        raise InvalidArgument("graph.token_ids", f"must be within [0, {vocab_size})")
    keys = set(zip(parents, tokens, strict=True))
    if len(keys) != n:
        raise InvalidArgument("graph.rows", "two rows share one full prefix; merge them")
    for index, law in enumerate(graph.laws):
        check_law(law, vocab_size=vocab_size, field=f"graph.laws[{index}]")
    drawn: set[int] = set()
    for index, draw in enumerate(graph.draws):
        if not 0 <= draw.row < n or parents[draw.row] != draw.parent:
            raise InvalidArgument(f"graph.draws[{index}]", f"row {draw.row} is not a child of {draw.parent}")
        if not -1 <= draw.law < len(graph.laws):
            raise InvalidArgument(f"graph.draws[{index}].law", f"{draw.law} is outside [-1, {len(graph.laws)})")
        drawn.add(draw.row)
    if len(drawn) != n:
        raise InvalidArgument("graph.draws", f"{n - len(drawn)} rows were never drawn")


def check_commit(graph: CandidateGraph, selected: Sequence[int]) -> None:
    """Raises InvalidArgument unless `selected` is one path from a child of the anchor downwards: no sibling, no gap."""
    expected = ANCHOR
    for index, row in enumerate(selected):
        if not 0 <= row < len(graph) or graph.parent_list[row] != expected:
            raise InvalidArgument(f"selected[{index}]", f"row {row} does not follow {expected}")
        expected = row
