"""SMC speculative decoding as it runs: a group of engine sessions, one a particle, whose weighted end result is output.

Algorithm 1 of Emara et al. (2026), see verifier/selection/smc.py. A round drafts K tokens for every particle, verifies
all of them in one pass of the engine, each session publishing its whole block and one target token, multiplies the weights,
and below a threshold of the effective sample size draws ancestors. A particle that continues another's text is opened
anew on it (its KV is replayed), under a seed of its own, so that copies part from their next token on.

The result is approximate, says so in its certificate, and exists only at the end: nothing can be streamed, because a later
resampling may drop any text (docs/decisions/0008-particle-groups.md). So Generate, which streams one session, refuses
`smc` at admission, and a group is started here, by whoever wants its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from contracts.capability import Exactness, SourceDescription
from contracts.errors import DraftproofError, FailedPrecondition, InvalidArgument
from contracts.frontier import Frontier
from contracts.graph import EMPTY_GRAPH, CandidateGraph, Draw
from contracts.manifest import Manifest, RoundManifest
from contracts.payload import payload_digest
from contracts.ports import OpenSession, VerifyRequest
from contracts.randomness import CoinChooser, Purpose, coin_key
from contracts.receipt import FinishReason, Receipt
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from verifier.engine import Engine
from verifier.particle_drafts import Block, BlockDrafts
from verifier.selection.smc import Certificate, Population, certify, pick, reweigh

Ints = npt.NDArray[np.int64]
NAME = "smc"
MAX_PARTICLES = 256


@dataclass(frozen=True)
class GroupPlan:
    """particles: N. drafted: K tokens a round, 0 for plain target samples. ess_share: resample below this share of N."""

    particles: int = 8
    drafted: int = 4
    ess_share: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.particles <= MAX_PARTICLES:
            raise InvalidArgument("group.particles", f"{self.particles} is outside [1, {MAX_PARTICLES}]")
        if self.drafted < 0:
            raise InvalidArgument("group.drafted", f"{self.drafted} is negative")
        if not 0.0 <= self.ess_share <= 1.0:
            raise InvalidArgument("group.ess_share", f"{self.ess_share} is outside [0, 1]")


@dataclass(frozen=True)
class GroupResult:
    """tokens: the picked particle's output. population, log_weights [N]: all of them at the end. rounds: target passes.

    target_us, select_us: microseconds of all particles and rounds.
    """

    tokens: tuple[int, ...]
    finish: FinishReason
    certificate: Certificate
    population: tuple[tuple[int, ...], ...]
    log_weights: tuple[float, ...]
    rounds: int
    target_us: float
    select_us: float


def check_group(policy: SamplingPolicy, *, exact_mode: bool) -> None:
    """Raises FailedPrecondition or InvalidArgument for what a group cannot honour."""
    if exact_mode:
        raise FailedPrecondition("exactness", f"{NAME!r} is {Exactness.APPROXIMATE}; exact mode never binds it")
    if policy.stop_strings:
        raise InvalidArgument("sampling.stop_strings", "a group of particles sees token ids only; use stop_ids")
    if policy.logprobs is not None:
        raise InvalidArgument("sampling.logprobs", "the result of a group of particles carries no logprobs")


@dataclass
class _Particle:
    """One session as its driver sees it. `text`: prompt and output."""

    policy: SamplingPolicy
    text: list[int]
    forks: int = 0
    generation: int = 0
    next_round: int = 0
    finish: FinishReason = FinishReason.NONE


class ParticleGroup:
    """Opens its sessions when made and closes them with `close`, or at the end of `run`.

    Raises what `check_group` and the engine's admission raise (temperature 0, KV budget, limits); nothing stays open then.
    """

    def __init__(
        self,
        engine: Engine,
        group_id: str,
        prompt: Sequence[int],
        policy: SamplingPolicy,
        plan: GroupPlan,
        drafts: BlockDrafts,
        *,
        exact_mode: bool = False,
        lease_ms: int = 60_000,
    ) -> None:
        check_group(policy, exact_mode=exact_mode)
        self._engine = engine
        self._id = group_id
        self._prompt = tuple(prompt)
        self._plan = plan
        self._drafts = drafts
        self._policy = policy
        self._lease_ms = lease_ms
        # The log-probability of a drafted token is the one of the law that verifiers see, so it is the weight's numerator.
        seen = replace(policy, logprobs=0, raw_logprobs=False)
        self._particles = [
            _Particle(replace(seen, seed=particle_seed(policy.seed, n)), list(prompt)) for n in range(plan.particles)
        ]
        try:
            for n in range(plan.particles):
                self._open(n)
        except DraftproofError:
            self.close()
            raise

    def close(self) -> None:
        """Frees all sessions. Repeating it is harmless."""
        for n in range(len(self._particles)):
            self._engine.close_session(self._session_id(n))

    def run(self) -> GroupResult:
        """Generates to the end. Raises what the engine raises, and FailedPrecondition if no particle is possible at all."""
        try:
            return self._run()
        finally:
            self.close()

    def _run(self) -> GroupResult:
        count = self._plan.particles
        population = Population(np.zeros(count), tuple(range(count)), float(count), False)
        ess: list[float] = []
        chi_square, log_normaliser, resamplings, rounds = 0.0, 0.0, 0, 0
        target_us = select_us = 0.0
        while any(particle.finish is FinishReason.NONE for particle in self._particles):
            blocks, receipts = self._round()
            target_us += sum(receipt.timings.target_us for receipt in receipts.values())
            select_us += sum(receipt.timings.select_us for receipt in receipts.values())
            grown = np.zeros(count)
            for n, receipt in receipts.items():
                grown[n] = block_log_weight_of(blocks[n], receipt)
            before = population.log_weights
            chooser = CoinChooser(self._policy.seed, len(self._prompt) + rounds)
            population = reweigh(
                before, grown, chooser, name=f"{NAME}:{self._id}", ess_threshold=self._plan.ess_share * count
            )
            gain = _log_mean(before + grown) - _log_mean(before)
            if gain == -np.inf:
                raise FailedPrecondition("group", f"no particle of round {rounds} is possible under the target")
            rounds += 1
            ess.append(population.ess)
            log_normaliser += gain
            chi_square = max(chi_square, float(((np.exp(grown) - 1.0) ** 2).mean()))
            if population.resampled:
                resamplings += 1
                self._continue(population.ancestors)
        chosen = pick(population, CoinChooser(self._policy.seed, len(self._prompt) + rounds), name=f"{NAME}:{self._id}")
        outputs = tuple(tuple(particle.text[len(self._prompt) :]) for particle in self._particles)
        certificate = certify(
            chi_square,
            particles=count,
            drafted=self._plan.drafted,
            ess=ess,
            log_normaliser=log_normaliser,
            resamplings=resamplings,
        )
        finish = self._particles[chosen].finish
        weights = tuple(population.log_weights.tolist())
        return GroupResult(outputs[chosen], finish, certificate, outputs, weights, rounds, target_us, select_us)

    def _round(self) -> tuple[dict[int, Block], dict[int, Receipt]]:
        """One pass over all particles that have not ended: their blocks and receipts."""
        open_ones = [n for n, particle in enumerate(self._particles) if particle.finish is FinishReason.NONE]
        # Particles that have not ended are all of one length, and a round publishes one token more than it drafts.
        left = self._policy.max_tokens - len(self._particles[open_ones[0]].text) + len(self._prompt)
        drafted = min(self._plan.drafted, left - 1)
        blocks = [Block((), ())] * len(open_ones)
        if drafted:
            prefixes = [
                (n, np.array(self._particles[n].text, dtype=np.int64), self._particles[n].policy.seed)
                for n in open_ones
            ]
            blocks = self._drafts.blocks(prefixes, drafted)
        outcomes = self._engine.verify_many(
            [self._request(n, block) for n, block in zip(open_ones, blocks, strict=True)]
        )
        receipts: dict[int, Receipt] = {}
        for n, outcome in zip(open_ones, outcomes, strict=True):
            if isinstance(outcome, DraftproofError):
                raise outcome
            particle = self._particles[n]
            particle.text.extend(outcome.tokens)
            particle.generation, particle.finish = outcome.generation, outcome.finish
            particle.next_round += 1
            receipts[n] = outcome
        return dict(zip(open_ones, blocks, strict=True)), receipts

    def _continue(self, ancestors: Sequence[int]) -> None:
        """Particle n goes on with the text of ancestors[n]; those that keep their own keep their session."""
        texts = [(list(particle.text), particle.finish) for particle in self._particles]
        for n, ancestor in enumerate(ancestors):
            if ancestor == n:
                continue
            particle = self._particles[n]
            self._engine.close_session(self._session_id(n))
            particle.text, particle.finish = list(texts[ancestor][0]), texts[ancestor][1]
            particle.forks, particle.generation, particle.next_round = particle.forks + 1, 0, 0
            if particle.finish is FinishReason.NONE:
                self._open(n)

    def _session_id(self, n: int) -> str:
        return f"{self._id}/{n}/{self._particles[n].forks}"

    def _manifest(self, n: int) -> Manifest:
        drafted = self._plan.drafted
        source = SourceDescription(
            name=NAME,
            kind="group",
            version="1",
            semantics=ProbabilitySemantics.NORMALIZED_CONDITIONAL,
            relation=SamplingRelation.POPULATION,
            topology=Topology.SEQUENCE,
        )
        return Manifest(
            target=self._engine.describe().target,
            sampling=self._particles[n].policy.to_json(),
            sources=(source,),
            verifier=NAME,
            exactness=Exactness.APPROXIMATE,
            node_budget=drafted,
            max_depth=drafted,
        )

    def _open(self, n: int) -> None:
        particle = self._particles[n]
        text = np.array(particle.text, dtype=np.int64)
        published = len(text) - len(self._prompt)
        self._engine.open_session(
            OpenSession(self._session_id(n), self._manifest(n), particle.policy, text, published, self._lease_ms)
        )

    def _request(self, n: int, block: Block) -> VerifyRequest:
        particle = self._particles[n]
        manifest = RoundManifest(
            manifest_hash=self._manifest(n).hash,
            session_id=self._session_id(n),
            round_id=particle.next_round,
            prefix_len=len(particle.text),
            frontier=Frontier(particle.text).digest,
            target_generation=particle.generation,
            plan=(),
        )
        graph = chain_of(block)
        return VerifyRequest(manifest, graph, payload_digest(manifest, graph), particle.next_round - 1)


def particle_seed(seed: int, n: int) -> int:
    """Particle n's own seed: its noise and coins meet no other particle's."""
    return coin_key(seed, 0, f"{NAME}.particle", Purpose.DRAFT, n)


def chain_of(block: Block) -> CandidateGraph:
    """A block as the graph that a session verifies."""
    count = len(block.tokens)
    if not count:
        return EMPTY_GRAPH
    order = np.arange(count, dtype=np.int64)
    return CandidateGraph(
        np.array(block.tokens, dtype=np.int64),
        order - 1,
        ((NAME,),) * count,
        tuple(Draw(row - 1, row, NAME, row) for row in range(count)),
        block.laws,
        frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        frozenset({SamplingRelation.POPULATION}),
    )


def block_log_weight_of(block: Block, receipt: Receipt) -> float:
    """sum log p(d_j) - log q(d_j) over the block's published tokens; what an end of sequence cut off weighs nothing."""
    total = 0.0
    for row, token in zip(receipt.accepted_rows, receipt.tokens, strict=False):
        total += receipt.logprobs[row].logprob - float(np.log(block.laws[row].probability(token)))
    return total


def _log_mean(log_weights: npt.NDArray[np.float64]) -> float:
    top = float(log_weights.max())
    return top + float(np.log(np.exp(log_weights - top).mean())) if top > -np.inf else -np.inf
