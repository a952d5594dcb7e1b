"""A Medusa head calibrated over real rounds, then served with Medusa's sparse tree by what was counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import FailedPrecondition
from contracts.sampling import SamplingPolicy
from proposer.heads.package import read_manifest
from proposer.topology.calibrated import rates
from proposer.topology.medusa_search import sparse_search
from proposer.topology.plan import SparseTree
from services.calibration.measure import Measuring, measure
from services.calibration.stack import local_stack
from services.drafting import drafting_of
from services.proposer_service.process import build_proposer
from services.settings import AllSettings, load
from services.trees import tree_of
from tests.contract.tiny_head import tiny_head
from tests.contract.tiny_service import tiny_service_checkpoint

PROMPTS = [[0, 40, 41, 42], [0, 70, 71], [0, 72, 73, 74, 75]]
CURVE = ((1, 60 * 10**9), (16, 61 * 10**9))
GREEDY = SamplingPolicy(temperature=0.0, max_tokens=24, ignore_eos=True)
RANKS, DEPTH = 6, 3


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> AllSettings:
    directory = tmp_path_factory.mktemp("medusa")
    checkpoint = tiny_service_checkpoint(directory)
    return load(
        AllSettings,
        model=str(checkpoint),
        cache_dir=directory,
        dtype="float32",
        threads=1,
        kv_tokens=4096,
        head=str(tiny_head(directory, checkpoint, "medusa")),
        head_tree=f"comb:{RANKS}x{DEPTH}",
        head_nodes=RANKS * DEPTH,
        draft_threads=1,
    )


async def test_medusas_tree_comes_from_what_a_comb_of_its_heads_showed(settings: AllSettings, tmp_path: Path) -> None:
    async with local_stack(settings) as stack:
        drafter = read_manifest(Path(settings.head)).weights_sha256
        measuring = Measuring("head", DEPTH, RANKS, GREEDY, drafter=drafter, drafting=drafting_of(settings))
        made = await measure(stack, PROMPTS, CURVE, measuring)
    # Every rank of the first level is tried in every round; later levels where the way there held.
    assert made.trials[0] == (made.trials[0][0],) * RANKS
    assert made.trials[0][0] > 30
    assert all(deep[0] <= made.trials[0][0] for deep in made.trials[1:])
    path = tmp_path / "medusa.json"
    path.write_bytes(made.to_bytes())
    tree = tree_of(f"medusa:{path}", nodes=8)
    assert isinstance(tree, SparseTree)
    accuracies = rates(made.trials, made.hits)
    assert tree.shape(8, DEPTH).paths == tuple(sorted(sparse_search(accuracies, 8), key=lambda one: (len(one), one)))
    served = settings.model_copy(update={"head_tree": f"medusa:{path}", "head_nodes": 8})
    async with local_stack(served) as stack:
        described = {source.name: source for source in await stack.proposer.describe()}["head"]
        assert described.version.endswith(f"+calibration:{made.hash}")
        plain = await stack.generate(PROMPTS[0], GREEDY, ())
        drafted = await stack.generate(PROMPTS[0], GREEDY, ("head",), node_budget=8)
        assert drafted.tokens == plain.tokens
        assert drafted.final.certificate.failures == {}
        assert max(ledger.candidates for ledger in drafted.rounds) == 8
        # It was counted greedily, so a sampled session gets no offer and the certificate says why.
        sampled = await stack.generate(PROMPTS[0], replace(GREEDY, temperature=0.8), ("head",), node_budget=8)
        assert sampled.final.certificate.failures["head"]
        assert sum(ledger.candidates for ledger in sampled.rounds) == 0
    # A level takes another time with other threads: what was chosen by it is not served with them.
    for changes in ({"draft_threads": 3}, {"draft_dtype": "float32"}):
        with pytest.raises(FailedPrecondition, match=r"calibration\.drafting"):
            build_proposer(served.model_copy(update=changes))
    build_proposer(
        served.model_copy(update={"head_tree": f"medusa:forced:{path}", "draft_dtype": "float32"})
    ).shutdown()
