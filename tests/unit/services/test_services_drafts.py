"""Draft models as the settings name them: several merged, staged ones, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import DraftproofError, FailedPrecondition, InvalidArgument
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation, Topology
from orchestrator.events import Final
from orchestrator.generate import Orchestrator
from orchestrator.request import GenerateRequest
from proposer.local import LocalProposer
from services.calibration.drafts import Drafts
from services.local import local_orchestrator
from services.proposer_service.process import build_proposer
from services.settings import AllSettings, ProposerSettings, load
from tests.contract.tiny_service import tiny_service_checkpoint
from tests.helpers.fakes import collect
from tests.helpers.generation import tokens_of

BOTH = ("draft_model", "draft_model_2")
GREEDY = SamplingPolicy(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.9, seed=5)
TEXT = "The quick brown fox. The quick brown"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_service_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another drafter with the same tokenizer: one layer less."""
    return tiny_service_checkpoint(tmp_path_factory.mktemp("other"), layers=1)


def settings_of(checkpoint: Path, tmp_path: Path, **changes: object) -> AllSettings:
    return load(
        AllSettings,
        **{
            "model": str(checkpoint),
            "cache_dir": tmp_path,
            "dtype": "float32",
            "draft_dtype": "float32",
            "threads": 1,
            "draft_threads": 1,
            "kv_tokens": 2048,
            "draft_kv_tokens": 2048,
            "propose_deadline_ms": 60_000,
            "budget": "fixed",
            "inline_sources": "",
            **changes,
        },
    )


async def answer(orchestrator: Orchestrator, policy: SamplingPolicy, **request: object) -> tuple[list[int], Final]:
    chunks, final = await collect(orchestrator.generate(GenerateRequest(text=TEXT, policy=policy, **request)))
    return tokens_of(chunks), final


def described(settings: ProposerSettings) -> dict[str, object]:
    proposer: LocalProposer = build_proposer(settings)
    found = {source.name: source for source in asyncio.run(proposer.describe())}
    proposer.shutdown()
    return found


async def test_two_draft_models_merge_under_every_verifier_that_may_take_them(
    checkpoint: Path, other: Path, tmp_path: Path
) -> None:
    settings = settings_of(checkpoint, tmp_path, draft_model=f"{other}, {checkpoint}", draft_tree="2,2;2,1")
    async with local_orchestrator(settings) as orchestrator:
        for policy in (GREEDY, SAMPLED):
            expected, _ = await answer(orchestrator, policy, speculation=False)
            tokens, final = await answer(orchestrator, policy, sources=BOTH, node_budget=10, max_depth=3)
            assert tokens == expected
            assert final.certificate.failures == {}
            assert all(final.certificate.ledger.proposed_by[name] > 0 for name in BOTH)
        _, final = await answer(orchestrator, SAMPLED, sources=BOTH, node_budget=10, max_depth=3, verifier="specinfer")
        ledger = final.certificate.ledger
        assert final.certificate.verifier == "specinfer"
        assert final.certificate.failures == {}
        assert ledger.committed == 40
        # The target as one of the drafters is right more often than not; both take part in the merged tree.
        assert ledger.accepted > ledger.rounds
        assert all(ledger.proposed_by[name] > 0 for name in BOTH)
        with pytest.raises(FailedPrecondition):
            await answer(orchestrator, SAMPLED, sources=BOTH, verifier="rejection")


async def test_two_draft_models_are_accepted_more_often_than_the_worse_of_them(
    checkpoint: Path, other: Path, tmp_path: Path
) -> None:
    settings = settings_of(checkpoint, tmp_path, draft_model=f"{other},{checkpoint}", draft_tree="2,1")
    async with local_orchestrator(settings) as orchestrator:
        rounds = {}
        for sources in (BOTH[:1], BOTH):
            finals = [
                (await answer(orchestrator, replace(SAMPLED, seed=seed), sources=sources, verifier="specinfer"))[1]
                for seed in range(3)
            ]
            rounds[sources] = sum(final.certificate.ledger.rounds for final in finals)
    assert rounds[BOTH] < rounds[BOTH[:1]]


@pytest.mark.parametrize("relation", ["beam", "independent", "shared_noise"])
async def test_a_staged_draft_is_served_with_its_relation(
    checkpoint: Path, other: Path, tmp_path: Path, relation: str
) -> None:
    verifier = {"independent": "rejection", "shared_noise": "gumbel_coupled", "beam": "membership"}[relation]
    ledgers = {}
    for staged in ("", "prompt_lookup"):
        settings = settings_of(
            checkpoint, tmp_path, draft_model=str(other), draft_relation=relation, draft_staged=staged
        )
        async with local_orchestrator(settings) as orchestrator:
            plain, _ = await answer(orchestrator, SAMPLED, speculation=False)
            tokens, final = await answer(orchestrator, SAMPLED, sources=("draft_model",), verifier=verifier)
            assert final.certificate.failures == {}
            if verifier != "rejection":
                assert tokens == plain
            ledgers[staged] = (tokens, final.certificate.ledger.accepted, final.certificate.ledger.candidates)
    assert ledgers[""] == ledgers["prompt_lookup"]


def test_each_draft_model_is_a_source_with_its_own_tree_and_version(checkpoint: Path, other: Path) -> None:
    common = {"draft_threads": 1, "draft_dtype": "float32"}
    found = described(ProposerSettings(draft_model=f"{other},{checkpoint},{other}", draft_tree="1;2,1;1", **common))
    drafts = [found[name] for name in (*BOTH, "draft_model_3")]
    assert [draft.topology for draft in drafts] == [Topology.SEQUENCE, Topology.TREE, Topology.SEQUENCE]
    assert {draft.relation for draft in drafts} == {SamplingRelation.INDEPENDENT}
    assert drafts[0].version == drafts[2].version != drafts[1].version
    staged = described(ProposerSettings(draft_model=str(other), draft_staged="prompt_lookup", **common))
    assert staged["draft_model"].version != drafts[0].version


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"draft_tree": "1;1;1"}, "DRAFTPROOF_DRAFT_TREE"),
        ({"draft_tree": "2,1", "draft_staged": "prompt_lookup"}, "draft_model.tree"),
    ],
)
def test_trees_that_do_not_fit_stop_the_service(checkpoint: Path, changes: dict[str, str], field: str) -> None:
    models = {"draft_model": f"{checkpoint},{checkpoint}", "draft_threads": 1, "draft_dtype": "float32"}
    with pytest.raises(InvalidArgument) as refused:
        build_proposer(ProposerSettings(**models, **changes))
    assert refused.value.field == field


def test_one_draft_model_at_a_time_is_calibrated(checkpoint: Path) -> None:
    for named in ("", f"{checkpoint},{checkpoint}"):
        with pytest.raises(DraftproofError) as refused:
            Drafts(ProposerSettings(draft_model=named))
        assert refused.value.field == "draft_model"
