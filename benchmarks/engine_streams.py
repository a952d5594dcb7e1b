"""Phases `streams` and `int4`: one stream at a time, ours and the peers' prompt by prompt in turn: drift hits all alike.

Greedy, bf16 weights (`int4`: four bits, beside llama.cpp over the Q4_1 file that the checkpoint's values come from), up to
128 tokens, prefill included. Ours runs as the default stack does (separate processes, adaptive
budget). A mode's output is identical to its engine's own plain one or not, token for token; no parting is excused.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.engine_load import Others
from benchmarks.engine_prompts import KINDS, stream_prompts
from benchmarks.engine_records import Records
from benchmarks.figures import ratio_of_totals
from benchmarks.peers.client import Peer
from benchmarks.peers.engines import CODES, STREAMS, Engine, start
from benchmarks.runs import generate, greedy
from benchmarks.stacks import Serving, checkpoint_directory, serving
from services.text import CheckpointTokenizer

OURS = "draftproof"
MODES = {"off": "off", "lookup": "lookup", "best": "both"}
Pairs = list[tuple[float, float]]


@dataclass(frozen=True)
class Side:
    """What is measured beside what. name: of the units in the records."""

    name: str
    dtype: str
    engines: Sequence[Engine]


BF16 = Side("streams", "bfloat16", STREAMS)
INT4 = Side("int4", "int4", CODES)


@dataclass(frozen=True)
class StreamPlan:
    """How much to run. `prompts` of twelve."""

    prompts: int
    max_tokens: int


async def measure(
    records: Records, plan: StreamPlan, cache: Path, progress: Progress, side: Side = BF16
) -> dict[str, str]:
    """Adds one unit per prompt: {"kind", "runs": {"engine/mode": {"output", "count", "seconds"}},
    "others"}.

    Returns why peers are missing, by peer.
    """
    checkpoint = checkpoint_directory(cache)
    tokenizer = CheckpointTokenizer(checkpoint)
    prompts = stream_prompts()[: plan.prompts]
    task = progress.add_task(side.name, total=len(prompts))
    wanted = [number for number in range(len(prompts)) if records.wants(f"{side.name}/{number:03}")]
    progress.update(task, completed=len(prompts) - len(wanted))
    if not wanted:
        return {}
    modes = {engine.name: engine.modes for engine in side.engines}
    with ExitStack() as stack:
        peers, missing = start(side.engines, checkpoint, cache / "peers", stack)
        async with serving(side.dtype, cache, progress) as on:
            warm = tokenizer.encode_chat([{"role": "user", "content": "Name three rivers and the seas they reach."}])
            await _all_ways(on, peers, modes, warm, "warm", min(24, plan.max_tokens))
            records.begin()
            for number in wanted:
                if not records.wants(f"{side.name}/{number:03}"):
                    break
                ids = tokenizer.encode_chat(prompts[number].messages)
                others = Others()
                runs = await _all_ways(on, peers, modes, ids, str(number), plan.max_tokens, turn=number)
                unit = {"kind": prompts[number].kind, "name": prompts[number].name, "prompt_tokens": len(ids)}
                records.add(f"{side.name}/{number:03}", {**unit, "runs": runs, "others": others.share()})
                progress.advance(task)
    return missing


async def _all_ways(
    on: Serving,
    peers: Mapping[str, Peer],
    modes: Mapping[str, Mapping[str, int]],
    ids: Sequence[int],
    name: str,
    max_tokens: int,
    turn: int = 0,
) -> dict[str, Any]:
    """One prompt in every mode of every engine; which comes first changes from prompt to prompt."""
    ways = [(OURS, mode) for mode in MODES] + [(peer, mode) for peer in peers for mode in modes[peer]]
    runs: dict[str, Any] = {}
    for engine, mode in (*ways[turn % len(ways) :], *ways[: turn % len(ways)]):
        if engine == OURS:
            # A salt of its own, or a prompt's KV would be shared with the mode before and not be prefilled.
            outcome = await generate(on.client, ids, MODES[mode], greedy(max_tokens), cache_salt=f"{name}-{mode}")
            ledger = outcome.ledger
            runs[f"{engine}/{mode}"] = {
                "output": list(outcome.tokens),
                "count": len(outcome.tokens),
                "seconds": outcome.seconds,
                "rounds": ledger.rounds,
                "candidates": ledger.candidates,
                "accepted": ledger.accepted,
            }
        else:
            answer = peers[engine].generate(ids, max_tokens, modes[engine][mode])
            # An engine that says no tokens says their number and the text.
            output = answer["tokens"] if "tokens" in answer else answer["text"]
            count = answer.get("count", len(output))
            runs[f"{engine}/{mode}"] = {"output": output, "count": count, "seconds": answer["seconds"]}
    return runs


def figures(records: Records, side: Side = BF16) -> dict[str, float | int | str | bool]:
    """Tokens a second by engine, mode and kind; ours over the best peer's, plain over plain; outputs identical to the
    engine's own plain. Names of other sides than bf16's begin with the side's.
    """
    found = _figures(records.of(f"{side.name}/"))
    return found if side is BF16 else {f"{side.name}_{name}": value for name, value in found.items()}


def _figures(units: Sequence[dict[str, Any]]) -> dict[str, float | int | str | bool]:
    # Where a peer was missing in a part of the prompts it has no figures at all.
    ways = [way for way in (units[0]["runs"] if units else ()) if all(way in unit["runs"] for unit in units)]
    out: dict[str, float | int | str | bool] = {}
    if units:
        out = {"stream_prompts": len(units), "stream_others_share": statistics.mean(unit["others"] for unit in units)}
    pairs: dict[str, dict[str, Pairs]] = {"all": {way: [_pair(unit, way) for unit in units] for way in ways}}
    for kind in KINDS:
        of_kind = [unit for unit in units if unit["kind"] == kind]
        if of_kind:
            pairs[kind] = {way: [_pair(unit, way) for unit in of_kind] for way in ways}
    for kind, by_way in pairs.items():
        for way, values in by_way.items():
            out[f"{_flat(way)}_tokens_per_s_{kind}"] = _per_second(values)
    # Runs are kept in the order they were made, which turns: off is first here.
    ours = [way for way in (f"{OURS}/{mode}" for mode in MODES) if way in ways]
    theirs = [way for way in ways if not way.startswith(OURS)]
    for way in ways:
        plain = f"{OURS}/off" if way in ours else f"{way.split('/')[0]}/plain"
        if way != plain:
            same = sum(unit["runs"][way]["output"] == unit["runs"][plain]["output"] for unit in units)
            out[f"{_flat(way)}_identical_to_own_plain"] = same
    if ours:
        out["identical_to_own_plain"] = min(int(out[f"{_flat(way)}_identical_to_own_plain"]) for way in ours[1:])
        for way in ours[1:]:
            for kind, by_way in pairs.items():
                _ratio(out, f"{_flat(way)}_over_off_{kind}", by_way[way], by_way[ours[0]])
    if ours and theirs:
        mine = max(ours, key=lambda way: _per_second(pairs["all"][way]))
        best = max(theirs, key=lambda way: _per_second(pairs["all"][way]))
        out["best_policy"], out["best_peer"] = mine, best
        _ratio(out, "vs_best_peer", pairs["all"][mine], pairs["all"][best])
        plain = max((way for way in theirs if way.endswith("/plain")), key=lambda way: _per_second(pairs["all"][way]))
        _ratio(out, "vs_best_peer_plain", pairs["all"][ours[0]], pairs["all"][plain])
        for kind, by_way in pairs.items():
            if kind != "all":
                # The best there, which may be another one than over all.
                local = max(theirs, key=lambda way: _per_second(by_way[way]))
                out[f"best_peer_{kind}"] = local
                _ratio(out, f"vs_best_peer_{kind}", by_way[mine], by_way[local])
    return out


def _ratio(out: dict[str, float | int | str | bool], name: str, above: Pairs, below: Pairs) -> None:
    out[name], out[f"{name}_low"], out[f"{name}_high"] = ratio_of_totals(above, below)


def _pair(unit: dict[str, Any], way: str) -> tuple[float, float]:
    run = unit["runs"][way]
    return float(run["count"]), float(run["seconds"])


def _per_second(pairs: Pairs) -> float:
    return sum(tokens for tokens, _ in pairs) / sum(seconds for _, seconds in pairs)


def _flat(way: str) -> str:
    return way.replace("/", "_")
