"""A calibration from real rounds: acceptance by depth and rank, what drafting costs, what a round costs besides."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from contracts.calibration import Calibration, CalibrationUse, sampler_of
from contracts.errors import FailedPrecondition
from contracts.graph import CandidateGraph
from contracts.ledger import RoundLedger
from contracts.receipt import FinishReason, Receipt
from contracts.sampling import SamplingPolicy
from proposer.topology.calibrated import AcceptanceTally, plan_of
from services.calibration.prompts import digest_of
from services.calibration.stack import LocalStack

CONTEXT = 256


@dataclass(frozen=True)
class Measuring:
    """source: whose candidates are counted. depths, ranks: size of the tables. policy: seeds and lengths included.

    verifier: "" takes the default of the policy. node_budget: of each round. drafter: digest of what drafts, whatever the
    tree; "" where it is not known. drafting: what it drafts with. prompts: names of the files. made_on: ISO date.
    """

    source: str
    depths: int
    ranks: int
    policy: SamplingPolicy
    verifier: str = ""
    node_budget: int = 64
    drafter: str = ""
    drafting: str = ""
    prompts: tuple[str, ...] = ()
    made_on: str = ""


async def measure(
    stack: LocalStack,
    prompts: Sequence[Sequence[int]],
    curve: tuple[tuple[int, int], ...],
    measuring: Measuring,
    *,
    done: Callable[[], None] = lambda: None,
) -> Calibration:
    """Generates for every prompt once with the source and once without, in turn. `done` is called after each prompt.

    curve: see `passes.measure_passes`, taken over CONTEXT rows. The tree is the plan's choice within what was counted and
    timed. Raises FailedPrecondition where the source made no offer at all, and what refuses the requests.
    """
    name, policy = measuring.source, measuring.policy
    described = {source.name: source for source in await stack.proposer.describe()}
    if name not in described:
        raise FailedPrecondition("source", f"{name!r} is not served here; there are {', '.join(sorted(described))}")
    target = (await stack.verifier.describe()).target
    tally = AcceptanceTally(measuring.depths, measuring.ranks)
    levels: list[int] = []

    def watch(graph: CandidateGraph, receipt: Receipt) -> None:
        if len(graph):
            levels.append(int(graph.depths.max()))
        tally.add(graph, receipt.accepted_rows, source=name, ended=receipt.finish is not FinishReason.NONE)

    drafted: list[RoundLedger] = []
    plain: list[RoundLedger] = []
    verifier = ""
    for index, prompt in enumerate(prompts):
        own = replace(policy, seed=policy.seed + index)
        stack.verifier.watch = watch
        try:
            with_source = await stack.generate(
                prompt,
                own,
                (name,),
                node_budget=measuring.node_budget,
                max_depth=measuring.depths,
                verifier=measuring.verifier,
            )
        finally:
            stack.verifier.watch = None
        drafted.extend(with_source.rounds)
        verifier = with_source.final.certificate.verifier
        plain.extend((await stack.generate(prompt, own, ())).rounds)
        done()
    offered = [ledger for ledger in drafted if ledger.candidates]
    if not offered:
        failures = {failure for ledger in drafted for failure in ledger.failures.values()}
        raise FailedPrecondition("source", f"{name!r} offered nothing in {len(drafted)} rounds {sorted(failures)}")
    trials, hits = tally.counts
    overhead_us = statistics.median(ledger.total_us - ledger.verify for ledger in plain)
    besides_us = statistics.median(ledger.total_us - ledger.verify - ledger.proposal for ledger in offered)
    drafting_us = statistics.median(ledger.proposal for ledger in offered)
    calibration = Calibration(
        target=target,
        source=name,
        source_version=described[name].version,
        drafter=measuring.drafter,
        drafting=measuring.drafting,
        relation=str(described[name].relation),
        verifier=verifier,
        sampler=sampler_of(policy),
        temperatures=(float(policy.temperature), float(policy.temperature)),
        prompts=measuring.prompts,
        prompts_digest=digest_of(prompts),
        prompt_count=len(prompts),
        made_on=measuring.made_on,
        code=_code_version(),
        sessions=1,
        context=CONTEXT,
        trials=trials,
        hits=hits,
        rounds=len(drafted),
        committed=sum(ledger.committed for ledger in drafted),
        curve=curve,
        draft_ns=round(drafting_us * 1e3 / statistics.median(levels)),
        fixed_ns=max(0, round((besides_us - overhead_us) * 1e3)),
        overhead_ns=max(0, round(overhead_us * 1e3)),
    )
    plan = plan_of(CalibrationUse(calibration))
    return replace(calibration, tree=plan.shape(plan.nodes, plan.depth).parents)


def _code_version() -> str:
    try:
        return version("draftproof")
    except PackageNotFoundError:
        return "source"
