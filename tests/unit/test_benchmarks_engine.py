"""The engine benchmark's own parts: records, figures, slopes, missing peers. No peer and no service is started."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from benchmarks import engine_concurrency, engine_pass, engine_streams
from benchmarks.engine_ceiling import Ceiling
from benchmarks.engine_load import Others, busy_seconds, tree_seconds
from benchmarks.engine_records import Records
from benchmarks.engine_soak import figures as soak_figures
from benchmarks.engine_soak import slope
from benchmarks.peers.client import running_peer
from benchmarks.peers.engines import Engine, start
from benchmarks.peers.environments import LLAMA_CPP, OPENVINO, Environment, PeerMissing, installed
from benchmarks.peers.gguf_file import interleaved
from contracts.errors import InvalidArgument

ECHO = """
import json, sys
print(json.dumps({"ready": True, "computes": "f32"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"tokens": request["prompt_ids"][: request["max_new_tokens"]], "seconds": 1.0}), flush=True)
"""


def test_records_go_on_where_a_cut_run_ended(tmp_path: Path) -> None:
    path = tmp_path / "units.jsonl"
    first = Records(path, {"levels": {1: 2}})
    assert first.wants("a/1")
    first.add("a/1", {"ms": 2.0})
    again = Records(path, {"levels": {1: 2}})
    assert not again.wants("a/1")
    assert again.wants("a/2")
    assert again.of("a/") == [{"ms": 2.0}]


def test_records_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "units.jsonl"
    Records(path, {"checkpoint": "one"})
    with pytest.raises(InvalidArgument, match="measured on"):
        Records(path, {"checkpoint": "other"})


def test_no_unit_is_begun_after_the_time_is_up_and_starting_takes_none_of_it() -> None:
    records = Records(None, {}, at_most_s=0.0)
    assert records.wants("a")
    records.begin()
    assert not records.wants("a")
    assert records.cut


def test_a_peer_that_cannot_be_started_is_missing_with_its_reason(tmp_path: Path) -> None:
    def unknown(checkpoint: Path, folder: Path) -> list[str]:
        raise PeerMissing("no wheel for this machine")

    def dies(checkpoint: Path, folder: Path) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no such instruction')"]

    def echoes(checkpoint: Path, folder: Path) -> list[str]:
        return [sys.executable, "-c", ECHO]

    engines = (Engine("none", {}, unknown), Engine("dying", {}, dies), Engine("echo", {}, echoes))
    with ExitStack() as stack:
        peers, missing = start(engines, tmp_path, tmp_path / "peers", stack)
        assert list(peers) == ["echo"]
        assert missing["none"] == "no wheel for this machine"
        assert "no such instruction" in missing["dying"]
        assert peers["echo"].hello["computes"] == "f32"
        assert peers["echo"].generate([5, 6, 7], 2)["tokens"] == [5, 6]


def test_a_peer_that_ends_in_the_middle_is_an_error_not_an_answer() -> None:
    with (
        running_peer([sys.executable, "-c", "print('{}', flush=True); input()"]) as peer,
        pytest.raises(RuntimeError, match="ended"),
    ):
        peer.ask({"id": "1"})


def test_an_environment_that_cannot_be_installed_says_why(tmp_path: Path) -> None:
    file = (tmp_path / "blocked").resolve()
    file.write_text("a file where a folder must be")
    with pytest.raises(PeerMissing, match="blocked"):
        installed(Environment("blocked", ("nothing==0",)), tmp_path)


def test_an_installed_environment_is_not_installed_again(tmp_path: Path) -> None:
    (tmp_path / OPENVINO.name).mkdir()
    (tmp_path / OPENVINO.name / "installed").write_text(OPENVINO.digest)
    assert installed(OPENVINO, tmp_path) == tmp_path / OPENVINO.name / "bin" / "python"


@pytest.mark.parametrize("environment", [LLAMA_CPP, OPENVINO], ids=lambda one: one.name)
def test_peers_are_pinned_and_bring_no_torch(environment: Environment) -> None:
    assert all("==" in requirement for requirement in environment.requirements)
    assert not any(requirement.startswith(("torch", "nvidia", "cuda")) for requirement in environment.requirements)


def test_interleaving_puts_a_heads_rotary_pairs_side_by_side() -> None:
    rows = torch.arange(8).reshape(8, 1)
    # Two heads of four rows: halves (0, 1 | 2, 3) and (4, 5 | 6, 7).
    assert interleaved(rows, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def _stream(kind: str, seconds: dict[str, float], other: str = "") -> dict[str, object]:
    runs = {
        way: {"output": [1, 2] if way != other else [1, 3], "count": 2, "seconds": took}
        for way, took in seconds.items()
    }
    return {"kind": kind, "runs": runs, "others": 0.0}


def test_streams_compare_our_best_policy_with_the_best_peers_best_mode() -> None:
    records = Records(None, {})
    took = {
        "draftproof/off": 2.0,
        "draftproof/lookup": 1.0,
        "draftproof/best": 1.5,
        "peer/plain": 4.0,
        "peer/lookup": 2.0,
    }
    records.add("streams/000", _stream("chat", took))
    records.add("streams/001", _stream("edit", took, other="peer/lookup"))
    found = engine_streams.figures(records)
    assert found["best_policy"] == "draftproof/lookup"
    assert found["best_peer"] == "peer/lookup"
    assert found["vs_best_peer"] == pytest.approx(2.0)
    assert found["vs_best_peer_edit"] == pytest.approx(2.0)
    assert found["draftproof_best_over_off_chat"] == pytest.approx(2.0 / 1.5)
    assert found["identical_to_own_plain"] == 2
    assert found["peer_lookup_identical_to_own_plain"] == 1


def test_streams_leave_out_a_peer_that_misses_a_part_of_the_prompts() -> None:
    records = Records(None, {})
    ours = {"draftproof/off": 2.0, "draftproof/lookup": 1.0, "draftproof/best": 1.5}
    records.add("streams/000", _stream("chat", {**ours, "peer/plain": 4.0}))
    records.add("streams/001", _stream("code", ours))
    found = engine_streams.figures(records)
    assert "vs_best_peer" not in found
    assert not any(name.startswith("peer") for name in found)


def test_concurrency_compares_adaptive_with_the_better_of_off_and_fixed_and_reports_the_worst_level() -> None:
    records = Records(None, {})
    for level, fixed in ((1, 1.0), (8, 4.0)):
        unit = {
            way: {"tokens": 100, "seconds": took, "rounds": 50, "candidates": 10}
            for way, took in (("off", 2.0), ("fixed", fixed), ("adaptive", 1.25))
        }
        peer = {"openvino_batching": {"tokens": 100, "seconds": 2.5}}
        records.add(f"concurrency/{level:02}/000", {**unit, **peer, "others": 0.0})
    found = engine_concurrency.figures(records)
    assert found["conc1_better"] == "fixed"
    assert found["conc8_better"] == "off"
    assert found["adaptive_over_best_conc1"] == pytest.approx(0.8)
    assert found["adaptive_over_best_conc8"] == pytest.approx(1.6)
    assert found["adaptive_over_best"] == pytest.approx(0.8)
    assert found["vs_peer_conc8"] == pytest.approx(2.0)


def test_disturbed_repeats_of_a_pass_are_left_out_where_enough_quiet_ones_are_there(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(
        {"model.embed_tokens.weight": torch.zeros(10, 4), "model.norm.weight": torch.ones(4)},
        tmp_path / "model.safetensors",
    )
    cells = [f"{context}/{rows}" for context in engine_pass.CONTEXTS for rows in engine_pass.ROWS]
    records = Records(None, {})
    for repeat in range(10):
        slow = 10.0 if repeat % 2 else 1.0
        took = dict.fromkeys(cells, 2.0 * slow)
        unit = {"bandwidth": 80e3, "products": 160e3, "ms": took, "others": 0.0 if slow == 1.0 else 0.5}
        records.add(f"pass/bfloat16/{repeat:03}", unit)
    found = engine_pass.figures(records, tmp_path)
    # 80 bytes at 80 kB/s: a bound of 1 ms.
    assert found["weight_bytes_bf16"] == 80
    assert found["pass_over_bound_16"] == pytest.approx(2.0)
    assert found["pass_repeats_bf16"] == 5
    assert found["pass_repeats_measured_bf16"] == 10
    assert found["rows16_over_rows1"] == pytest.approx(1.0)
    # 16 rows of 40 weights at 160,000 products a second: 4 ms, where a pass of one row took 2.
    assert found["rows16_over_rows1_floor"] == pytest.approx(2.0)


def test_the_ceiling_forms_the_products_that_it_counts() -> None:
    # It looks at its own sums, and raises where a chain was left out.
    assert Ceiling(2).products_per_s() > 0.0


def test_a_slope_is_found_and_a_flat_series_is_called_flat() -> None:
    seconds = [float(second) for second in range(0, 600, 5)]
    growing = [(at, 100.0 + at / 60.0 * 3.0 + (at % 7) * 0.1) for at in seconds]
    rate, low, high = slope(growing)
    assert low <= 3.0 <= high
    assert rate == pytest.approx(3.0, abs=0.1)
    flat = [(at, 100.0 + (at % 7) * 0.1) for at in seconds]
    found = soak_figures({"verifier": flat, "verifier.1": growing}, {"finished": 3})
    assert found["soak_verifier_flat"] is True
    assert found["soak_verifier_1_flat"] is False
    assert found["soak_flat"] is False


def test_the_settling_third_does_not_count_into_a_slope() -> None:
    points = [(float(at), 500.0 if at > 200 else 100.0 + 2.0 * at) for at in range(0, 600, 5)]
    assert slope(points)[0] == pytest.approx(0.0, abs=1e-6)


def test_what_this_process_computes_is_not_the_others() -> None:
    import os

    others = Others()
    before = tree_seconds(os.getpid())
    total = 0
    while tree_seconds(os.getpid()) < before + 0.1:
        total += sum(range(10_000))
    assert total
    assert 0.0 <= others.share() <= 1.0
    assert busy_seconds() >= tree_seconds(os.getpid())
