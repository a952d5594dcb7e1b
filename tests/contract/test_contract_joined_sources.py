"""A real head with lookup, retrieval and a draft model in one tree: the text of no speculation, or the target's law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from contracts.errors import FailedPrecondition
from contracts.sampling import SamplingPolicy
from models.laws import LawProcessor
from models.load import load_backend
from orchestrator.events import Chunk, Final
from orchestrator.generate import Orchestrator
from orchestrator.request import GenerateRequest
from proposer.draft_cache import DraftCache
from retriever.redis_store import RedisStore
from retriever.sources import Kind, Source
from services.indexing import build_index
from services.local import local_orchestrator
from services.redis_embedded import embedded_redis
from services.settings import AllSettings, load
from tests.contract.tiny_head import tiny_head
from tests.contract.tiny_service import VOCAB, tiny_service_checkpoint
from tests.contract.tiny_stack import TEXT
from tests.helpers.fakes import collect
from tests.helpers.generation import tokens_of

PROMPT = "The quick brown fox. The quick brown"
GREEDY = SamplingPolicy(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.9, seed=5)
JOINED = ("head", "prompt_lookup", "retrieval")
DRAFTERS = ("head", "draft_model")
# The level of the law test and its size; a first choice of laws, with which nothing was accepted, was given up.
ALPHA, GENERATIONS, FIRST_SEED = 0.001, 200, 3_000_000
# Four tokens alone, so that models with nothing in common have candidates to accept of each other.
ALLOWED = (40, 41, 42, 43)
LAW_POLICY = SamplingPolicy(temperature=2.0, allowed_ids=ALLOWED, max_tokens=3, ignore_eos=True)


@dataclass(frozen=True)
class World:
    """The target, another model with its tokenizer, and where an index of TEXT is served from."""

    checkpoint: Path
    draft: Path
    directory: Path
    redis_url: str

    def settings(self, relation: str, **changes: object) -> AllSettings:
        return load(
            AllSettings,
            **{
                "model": str(self.checkpoint),
                "cache_dir": self.directory,
                "redis_url": self.redis_url,
                "dtype": "float32",
                "draft_dtype": "float32",
                "threads": 1,
                "draft_threads": 1,
                "kv_tokens": 4096,
                "draft_kv_tokens": 4096,
                "propose_deadline_ms": 60_000,
                "budget": "fixed",
                "inline_sources": "",
                "lookup_spec_factor": 0,
                "head": str(self.directory / "head" / "eagle3"),
                "head_relation": relation,
                "head_tree": "by_value:3x3" if relation == "beam" else "2,1",
                "draft_model": str(self.draft),
                "draft_relation": relation,
                "draft_tree": "2,1",
                **changes,
            },
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("joined")
    checkpoint = tiny_service_checkpoint(directory / "target")
    tiny_head(directory / "head", checkpoint)
    draft = tiny_service_checkpoint(directory / "draft", layers=1)
    with ExitStack() as stack:
        redis = stack.enter_context(embedded_redis(directory / "redis"))
        corpus = directory / "corpus.txt"
        corpus.write_text(TEXT)
        store = RedisStore(redis.url)
        stack.callback(store.close)
        build_index(
            store,
            "tiny",
            [Source(corpus, Kind.TEXT)],
            checkpoint,
            directory / "build",
            licence="CC0",
            progress=lambda *_: None,
        )
        yield World(checkpoint, draft, directory, redis.url)


async def answer(
    orchestrator: Orchestrator, policy: SamplingPolicy, **request: object
) -> tuple[list[int], list[Chunk], Final]:
    chunks, final = await collect(orchestrator.generate(GenerateRequest(text=PROMPT, policy=policy, **request)))
    return tokens_of(chunks), chunks, final


@pytest.mark.parametrize(
    ("relation", "policy"),
    [("beam", GREEDY), ("beam", SAMPLED), ("shared_noise", SAMPLED), ("independent", SAMPLED)],
    ids=["greedy", "membership", "coupled", "membership-drawn"],
)
async def test_a_head_beside_lookup_and_retrieval_changes_no_token(
    world: World, relation: str, policy: SamplingPolicy
) -> None:
    async with local_orchestrator(world.settings(relation)) as orchestrator:
        expected, _, _ = await answer(orchestrator, policy, speculation=False)
        tokens, chunks, final = await answer(orchestrator, policy, sources=JOINED, node_budget=24, max_depth=4)
    assert tokens == expected
    assert final.certificate.failures == {}
    assert final.certificate.absent == {}
    # One tree: all three offered in the first round, and the graph holds fewer rows than offers where they agreed.
    first = chunks[0].round
    assert first is not None
    assert all(first.ledger.proposed_by[name] > 0 for name in JOINED)
    assert first.ledger.candidates <= sum(first.ledger.proposed_by.values())
    assert final.certificate.ledger.proposed_by["head"] > first.ledger.proposed_by["head"]


async def test_a_head_and_a_draft_model_share_the_targets_noise(world: World) -> None:
    async with local_orchestrator(world.settings("shared_noise")) as orchestrator:
        expected, _, _ = await answer(orchestrator, SAMPLED, speculation=False)
        tokens, _, final = await answer(orchestrator, SAMPLED, sources=DRAFTERS, verifier="gumbel_coupled")
        assert tokens == expected
        assert final.certificate.failures == {}
        assert all(final.certificate.ledger.proposed_by[name] > 0 for name in DRAFTERS)
        with pytest.raises(FailedPrecondition) as refused:
            await answer(orchestrator, SAMPLED, sources=JOINED, verifier="gumbel_coupled")
        assert refused.value.field.startswith("sources.")


async def test_verifiers_with_q_take_a_head_and_a_draft_model_and_no_lookup_beside_them(world: World) -> None:
    async with local_orchestrator(world.settings("independent")) as orchestrator:
        with pytest.raises(FailedPrecondition) as refused:
            await answer(orchestrator, SAMPLED, sources=(*DRAFTERS, "prompt_lookup"), verifier="specinfer")
        assert refused.value.field.startswith("sources.")
        _, chunks, final = await answer(orchestrator, SAMPLED, sources=DRAFTERS, verifier="specinfer")
    assert final.certificate.ledger.committed == 40
    assert final.certificate.failures == {}
    first = chunks[0].round
    assert first is not None
    assert all(first.ledger.proposed_by[name] > 0 for name in DRAFTERS)


def joint_law(checkpoint: Path, prompt: list[int]) -> dict[tuple[int, int], float]:
    """Of the first two tokens under LAW_POLICY, from plain passes."""
    backend = load_backend(checkpoint, dtype="float32", kv_budget_tokens=512, threads=1)

    def law_after(more: list[int]) -> dict[int, float]:
        cache = DraftCache(backend, len(prompt) + len(more))
        logits = cache.follow(np.array([*prompt, *more]))[None]
        cache.release()
        none = np.zeros(0, np.int64)
        processor = LawProcessor(LAW_POLICY, vocab_size=VOCAB, prompt_len=len(prompt), eos_ids=())
        law = processor.laws(logits, prefix=np.array([*prompt, *more]), token_ids=none, parents=none).row(-1)
        ids, probabilities = law.top(len(ALLOWED))
        return dict(zip(ids.tolist(), probabilities.tolist(), strict=True))

    return {(first, second): p * q for first, p in law_after([]).items() for second, q in law_after([first]).items()}


def p_value(law: dict[tuple[int, int], float], drawn: list[tuple[int, ...]]) -> float:
    """Pearson's chi-square, cells pooled from the rarest up until each expects at least 8; what the law forbids has 0."""
    counts = Counter(drawn)
    if set(counts) - set(law):
        return 0.0
    expected, observed = [0.0], [0]
    for cell in sorted(law, key=lambda one: law[one]):
        expected[-1] += law[cell] * len(drawn)
        observed[-1] += counts[cell]
        if expected[-1] >= 8.0:
            expected.append(0.0)
            observed.append(0)
    left, seen = expected.pop(), observed.pop()
    expected[-1] += left
    observed[-1] += seen
    return float(stats.chisquare(observed, expected).pvalue)


async def test_specinfer_over_a_head_and_a_draft_model_publishes_the_targets_law(world: World) -> None:
    prompt = [0, 40, 41, 42, 40, 41]
    drawn: list[tuple[int, ...]] = []
    accepted: Counter[str] = Counter()
    async with local_orchestrator(world.settings("independent")) as orchestrator:
        for seed in range(FIRST_SEED, FIRST_SEED + GENERATIONS):
            request = GenerateRequest(
                prompt_ids=tuple(prompt),
                policy=replace(LAW_POLICY, seed=seed),
                sources=DRAFTERS,
                verifier="specinfer",
                node_budget=12,
                max_depth=2,
            )
            chunks, final = await collect(orchestrator.generate(request))
            drawn.append(tuple(tokens_of(chunks)[:2]))
            accepted.update(final.certificate.ledger.accepted_by)
    # Both take part in what is published, so both laws are in the test.
    assert min(accepted[name] for name in DRAFTERS) > 10
    assert p_value(joint_law(world.checkpoint, prompt), drawn) > ALPHA
    # The same test sees a law that is only the drafter's.
    assert p_value(joint_law(world.draft, prompt), drawn) <= ALPHA
