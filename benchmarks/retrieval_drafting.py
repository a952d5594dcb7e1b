"""What an index is worth to Generate: committed tokens a round and speed against no speculation, leak check on.

HumanEval prompts over an index of this machine's Python source, and GSM8K questions that were held out of the index over
the others. The exclusion drops every document that repeats a prompt or its reference answer (exact, or 13 words in a
row); its counts are figures.
"""

from __future__ import annotations

import asyncio
import json
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import ratio_of_totals
from benchmarks.prompts import prompt_folder
from benchmarks.retrieval_index import Figures, until_served
from benchmarks.runs import generate, greedy
from benchmarks.stacks import Serving, checkpoint_directory
from retriever.redis_store import RedisStore
from retriever.sources import Kind, Source
from services.indexing import build_index
from services.text import CheckpointTokenizer

MODES = ("off", "retrieval", "both")
GSM8K_HELD_OUT = 200


@dataclass(frozen=True)
class Task:
    """prompts: chat messages' text. sources: what is indexed. excluded: prompts and reference answers."""

    name: str
    prompts: Sequence[str]
    sources: Sequence[Source]
    excluded: Sequence[str]


def humaneval(count: int, source_bytes: int) -> Task:
    """Completions of the first `count` functions. source_bytes: how much of the library and installed packages to index."""
    rows = _rows("humaneval_half.jsonl")
    prompts = [f"Complete this Python function. Reply with the code only.\n\n{row['prompt']}" for row in rows[:count]]
    paths = sysconfig.get_paths()
    sources: list[Source] = []
    size = 0
    for root in (Path(paths["stdlib"]), Path(paths["purelib"])):
        for path in sorted(root.rglob("*.py")):
            # One look at a file's size each: the packages hold a hundred thousand files.
            if size >= source_bytes:
                break
            if path.is_file() and 0 < (length := path.stat().st_size) < 1 << 20:
                sources.append(Source(path, Kind.TEXT))
                size += length
    return Task(
        "humaneval", prompts, sources, [text for row in rows for text in (row["prompt"], row["canonical_solution"])]
    )


def gsm8k(count: int, directory: Path) -> Task:
    """Questions from the end of the training set, which stay out of the index of all others."""
    rows = _rows("gsm8k_train.jsonl")
    held_out, rest = rows[-GSM8K_HELD_OUT:], rows[:-GSM8K_HELD_OUT]
    path = directory / "gsm8k.jsonl"
    path.write_text("".join(json.dumps({"text": f"{row['question']}\n{row['answer']}"}) + "\n" for row in rest))
    excluded = [text for row in held_out for text in (row["question"], row["answer"])]
    return Task("gsm8k", [row["question"] for row in held_out[:count]], [Source(path, Kind.JSON_LINES)], excluded)


def _rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (prompt_folder() / name).read_text(encoding="utf-8").splitlines()]


async def drafting_figures(on: Serving, task: Task, cache: Path, max_tokens: int, namespace: str) -> Figures:
    """Each prompt in each mode, one after the other, interleaved."""
    checkpoint = checkpoint_directory(cache)
    store = RedisStore(on.stack.redis_url, namespace=namespace)
    try:
        built = await asyncio.to_thread(
            build_index,
            store,
            task.name,
            task.sources,
            checkpoint,
            cache / "index",
            licence="benchmark",
            excluded=task.excluded,
            progress=lambda *_: None,
        )
    finally:
        store.close()
    await until_served(on.stack.endpoints["retriever"], built.alias.release_id)
    tokenizer = CheckpointTokenizer(checkpoint)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in task.prompts]
    # The orchestrator's description of the retriever is at most a second old.
    await asyncio.sleep(1.5)
    policy = greedy(max_tokens)
    outcomes: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    rounds = dict.fromkeys(MODES, 0)
    committed = dict.fromkeys(MODES, 0)
    same = 0
    for mode in MODES:
        await generate(on.client, prompts[0], mode, greedy(8), **_options(mode, task.name))
    for prompt in prompts:
        texts = {}
        for mode in MODES:
            outcome = await generate(on.client, prompt, mode, policy, **_options(mode, task.name))
            outcomes[mode].append((len(outcome.tokens), outcome.seconds))
            rounds[mode] += outcome.ledger.rounds
            committed[mode] += outcome.ledger.committed
            texts[mode] = outcome.tokens
        same += all(tokens == texts["off"] for tokens in texts.values())
    figures: Figures = {
        f"{task.name}_prompts": len(prompts),
        f"{task.name}_index_tokens": built.report.release.tokens,
        f"{task.name}_index_documents": built.report.documents,
        f"{task.name}_excluded_exact": built.report.excluded_exact,
        f"{task.name}_excluded_overlap": built.report.excluded_overlap,
        f"{task.name}_identical_to_off": same / len(prompts),
    }
    for mode in MODES[1:]:
        value, low, high = ratio_of_totals(outcomes[mode], outcomes["off"])
        figures[f"{task.name}_{mode}_tokens_per_round"] = committed[mode] / rounds[mode]
        figures[f"{task.name}_{mode}_speedup"] = value
        figures[f"{task.name}_{mode}_speedup_low"] = low
        figures[f"{task.name}_{mode}_speedup_high"] = high
    return figures


def _options(mode: str, index: str) -> dict[str, object]:
    return {} if mode == "off" else {"indexes": {"retrieval": index}}
