"""What an index is worth to Generate: committed tokens a round and speed against no speculation, leak check on.

HumanEval prompts over an index of this machine's Python source, and GSM8K questions that were held out of the index over
the others. The exclusion drops every document that repeats a prompt or its reference answer (exact, or 13 words in a
row); its counts are figures. Every way is asked under the default, adaptive budget and under the fixed one.
"""

from __future__ import annotations

import asyncio
import json
import sysconfig
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import ratio_of_totals
from benchmarks.prompts import prompt_folder
from benchmarks.retrieval_index import Figures, until_served
from benchmarks.runs import Outcome, generate, greedy
from benchmarks.stacks import Serving, checkpoint_directory
from retriever.redis_store import RedisStore
from retriever.sources import Kind, Source
from services.clients.generate import GenerateClient
from services.indexing import build_index
from services.redis_embedded import free_port
from services.settings import PREFIX
from services.supervisor import Supervisor
from services.text import CheckpointTokenizer

GSM8K_HELD_OUT = 200
ADAPTIVE, FIXED = "adaptive", "fixed"


class Way(NamedTuple):
    """mode: one of `runs.MODES`. budget: of the orchestrator that is asked."""

    mode: str
    budget: str


WAYS = (
    Way("off", ADAPTIVE),
    Way("retrieval", ADAPTIVE),
    Way("both", ADAPTIVE),
    Way("retrieval", FIXED),
    Way("both", FIXED),
)


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


@asynccontextmanager
async def with_fixed_budget(on: Serving) -> AsyncIterator[GenerateClient]:
    """A second orchestrator before the same services, which verifies every candidate (`DRAFTPROOF_BUDGET=fixed`)."""
    first = next(child.spec for child in on.stack.supervisor.children if child.spec.name == "orchestrator")
    port = free_port()
    settings = {PREFIX + "BUDGET": "fixed", PREFIX + "ORCHESTRATOR_PORT": str(port)}
    second = replace(first, endpoint=f"127.0.0.1:{port}", environment={**first.environment, **settings})
    async with Supervisor([second], lambda *_: None) as supervisor:
        await supervisor.start()
        client = GenerateClient(second.endpoint)
        try:
            yield client
        finally:
            await client.close()


async def drafting_figures(
    on: Serving, fixed: GenerateClient, task: Task, cache: Path, max_tokens: int, namespace: str
) -> Figures:
    """Each prompt in each way, one after the other, interleaved."""
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
    # The orchestrators' description of the retriever is at most a second old.
    await asyncio.sleep(1.5)
    clients = {ADAPTIVE: on.client, FIXED: fixed}
    runs: dict[Way, list[Outcome]] = {way: [] for way in WAYS}
    for way in WAYS:
        await generate(clients[way.budget], prompts[0], way.mode, greedy(8), **_options(way, task.name))
    for prompt in prompts:
        for way in WAYS:
            options = _options(way, task.name)
            runs[way].append(await generate(clients[way.budget], prompt, way.mode, greedy(max_tokens), **options))
    figures: Figures = {
        f"{task.name}_prompts": len(prompts),
        f"{task.name}_index_tokens": built.report.release.tokens,
        f"{task.name}_index_documents": built.report.documents,
        f"{task.name}_excluded_exact": built.report.excluded_exact,
        f"{task.name}_excluded_overlap": built.report.excluded_overlap,
        f"{task.name}_identical_to_off": sum(
            len({run.tokens for run in same}) == 1 for same in zip(*runs.values(), strict=True)
        )
        / len(prompts),
    }
    plain = [(len(run.tokens), run.seconds) for run in runs[WAYS[0]]]
    for way in WAYS[1:]:
        name = f"{task.name}_{way.mode}_{way.budget}"
        value, low, high = ratio_of_totals([(len(run.tokens), run.seconds) for run in runs[way]], plain)
        ledgers = [run.ledger for run in runs[way]]
        rounds = sum(ledger.rounds for ledger in ledgers)
        figures[f"{name}_tokens_per_round"] = sum(ledger.committed for ledger in ledgers) / rounds
        figures[f"{name}_candidates_per_round"] = sum(ledger.candidates for ledger in ledgers) / rounds
        figures[f"{name}_speedup"] = value
        figures[f"{name}_speedup_low"] = low
        figures[f"{name}_speedup_high"] = high
    return figures


def _options(way: Way, index: str) -> dict[str, object]:
    return {} if way.mode == "off" else {"indexes": {"retrieval": index}}
