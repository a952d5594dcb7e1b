"""Ways of drafting side by side: the same prompts, interleaved, against plain rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from contracts.ledger import RoundLedger
from contracts.sampling import SamplingPolicy
from contracts.tree_shape import TreeShape
from proposer.topology.counting import with_root
from proposer.topology.hardware import Choice, choose
from proposer.topology.plan import CalibratedTree
from proposer.topology.sequoia import best_shape
from services.calibration.stack import LocalStack

PLAIN = "plain"


@dataclass(frozen=True)
class Way:
    """A source by name, the most candidates a round and the greatest depth it is asked for."""

    source: str
    node_budget: int
    max_depth: int


@dataclass
class Result:
    """Per prompt, in order: tokens and seconds of the rounds, and the CPU's. rounds: all ledgers."""

    pairs: list[tuple[float, float]] = field(default_factory=list)
    cpu_pairs: list[tuple[float, float]] = field(default_factory=list)
    rounds: list[RoundLedger] = field(default_factory=list)
    texts: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def tokens_per_round(self) -> float:
        return sum(ledger.committed for ledger in self.rounds) / len(self.rounds)

    @property
    def tokens_per_second(self) -> float:
        """Total tokens over total seconds."""
        return sum(tokens for tokens, _ in self.pairs) / sum(seconds for _, seconds in self.pairs)

    @property
    def failures(self) -> set[str]:
        """Why the source was silent in some round, if it was."""
        return {failure for ledger in self.rounds for failure in ledger.failures.values()}


async def compare(
    stack: LocalStack,
    prompts: Sequence[Sequence[int]],
    policy: SamplingPolicy,
    ways: Sequence[Way],
    *,
    verifier: str = "",
    repeats: int = 1,
    done: Callable[[], None] = lambda: None,
) -> Mapping[str, Result]:
    """A result per way, and PLAIN. Each prompt runs in all ways, their order turning from prompt to prompt.

    `done` is called after each generation. The first prompt runs once in every way beforehand and is not counted then.
    """
    results = {way.source: Result() for way in ways} | {PLAIN: Result()}
    order: list[Way | None] = [*ways, None]

    async def run(way: Way | None, index: int) -> None:
        own = replace(policy, seed=policy.seed + index)
        if way is None:
            observed = await stack.generate(prompts[index], own, ())
        else:
            budget, depth = way.node_budget, way.max_depth
            observed = await stack.generate(
                prompts[index], own, (way.source,), node_budget=budget, max_depth=depth, verifier=verifier
            )
        into = results[PLAIN if way is None else way.source]
        into.pairs.append((float(len(observed.tokens)), observed.seconds))
        into.cpu_pairs.append((float(observed.later_tokens), observed.later_cpu_seconds))
        into.rounds.extend(observed.rounds)
        into.texts.append(observed.tokens)

    for way in order:
        await run(way, 0)
    for name in results:
        results[name] = Result()
    for turn in range(repeats):
        for index in range(len(prompts)):
            shift = (index + turn) % len(order)
            for way in (*order[shift:], *order[:shift]):
                await run(way, index)
                done()
    return results


def best_of_size(plan: CalibratedTree, candidates: int) -> tuple[TreeShape, Choice] | None:
    """The best tree of exactly `candidates` nodes over all depths by predicted time a token; None where there is none."""
    nodes = with_root(candidates)
    only = np.full_like(plan.expected, -np.inf)
    only[nodes] = plan.expected[nodes]
    if not np.isfinite(only[nodes, 1:]).any():
        return None
    choice = choose(only, plan.costs)
    return best_shape(plan.acceptance, choice.nodes, choice.depth), choice
