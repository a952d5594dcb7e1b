"""The REST index: build, memory, query time and its growth, swaps under load, and what it is worth to Generate.

    python -m benchmarks.retrieval [--quick] [--json FILE] [--phase index|growth|growth-grpc|serve|draft ...] [--prompts N]

Text is this machine's own Python source and documentation, each document once and no near-copies (`retrieval_text.py`),
tokenised for the default model and kept in the cache. Sizes beyond it repeat spans in another order with one token in 50
replaced; `unique_share_*` says how much of a size is not repeated. Times are wall times of single queries on whatever else
the machine is doing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.figures import write
from benchmarks.retrieval_corpus import real_corpus
from benchmarks.retrieval_drafting import drafting_figures, gsm8k, humaneval, with_fixed_budget
from benchmarks.retrieval_growth import growth_figures
from benchmarks.retrieval_growth_grpc import grpc_growth_figures
from benchmarks.retrieval_index import (
    Figures,
    folder,
    grpc_figures,
    index_figures,
    publish_corpus,
    split,
    until_served,
)
from benchmarks.retrieval_swap import swap_figures
from benchmarks.stacks import INDEX, checkpoint_directory, serving
from models.checkpoint import tokenizer_digest
from retriever.redis_store import RedisStore
from services.text import CheckpointTokenizer

SERVED = "real-text"
NAMESPACE = "benchmark-retrieval"
PHASES = ("index", "growth", "growth-grpc", "serve", "draft")


@dataclass(frozen=True)
class Plan:
    """How much to run. corpus: real tokens to gather, the twentieth held out for queries included. served: tokens of the
    index that is asked over gRPC. copied: segments of the growth phase are copied, not mapped. task: the only one of the
    drafting phase.
    """

    corpus: int
    tokens: int
    served: int
    sizes: tuple[int, ...]
    queries: int
    swaps: int
    prompts: int
    max_tokens: int
    source_bytes: int
    copied: bool = True
    task: str | None = None


FULL = Plan(106_000_000, 10_000_000, 10_000_000, (10**5, 10**6, 10**7, 10**8), 16_000, 12, 12, 96, 20 << 20)
QUICK = Plan(10_700_000, 10_000_000, 1_000_000, (10**5, 10**6, 10**7), 1_000, 3, 2, 24, 1 << 20)


async def run(plan: Plan, phases: Sequence[str], cache: Path, path: Path | None) -> None:
    """The phases asked for; figures are written after each, so that a cut run leaves what it measured."""
    figures: Figures = {"checkpoint": "SmolLM2-135M-Instruct, from a Q4_1 file"}
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("tokenise this machine's text", total=len(phases) + 1)
        tokenizer = CheckpointTokenizer(checkpoint_directory(cache))
        told = progress.add_task("tokens", total=plan.corpus)
        whole = real_corpus(
            tokenizer, plan.corpus, folder(cache), lambda tokens: progress.update(told, completed=tokens)
        )
        progress.remove_task(told)
        if whole.seconds:
            figures["tokenise_tokens_per_s"] = len(whole.tokens) / whole.seconds
        corpus, held_out = split(whole)
        progress.advance(task)
        if "index" in phases:
            progress.update(task, description="index")
            figures |= index_figures(corpus, held_out, plan.tokens, plan.queries)
            write(figures, path, console, "Retrieval")
            progress.advance(task)
        if "growth" in phases:
            progress.update(task, description="growth")
            figures |= growth_figures(corpus, held_out, plan.sizes, plan.queries, folder(cache), copied=plan.copied)
            write(figures, path, console, "Retrieval")
            progress.advance(task)
        if "growth-grpc" in phases:
            progress.update(task, description="growth over gRPC")
            figures |= await grpc_growth_figures(corpus, held_out, plan.sizes, plan.queries, folder(cache))
            write(figures, path, console, "Retrieval")
            progress.advance(task)
        if not {"serve", "draft"} & set(phases):
            return
        # Names of its own: the cache's Redis is shared with other benchmarks, which expect one index.
        async with serving(
            "bfloat16", cache, progress, redis_namespace=NAMESPACE, default_index=INDEX, keep_releases=4
        ) as on:
            if "serve" in phases:
                progress.update(task, description="serve")
                endpoint = on.stack.endpoints["retriever"]
                store = RedisStore(on.stack.redis_url, namespace=NAMESPACE)
                # A retriever serves releases of its model's tokenizer only.
                digest = tokenizer_digest(checkpoint_directory(cache))
                release = await asyncio.to_thread(publish_corpus, store, SERVED, corpus, plan.served, digest)
                store.close()
                await until_served(endpoint, release)
                figures["grpc_index_tokens"] = plan.served
                figures |= await grpc_figures(endpoint, SERVED, held_out, plan.queries)
                text = corpus.tokens[:1_000_000]
                figures |= await swap_figures(endpoint, on.stack.redis_url, NAMESPACE, text, plan.swaps, digest)
                write(figures, path, console, "Retrieval")
                progress.advance(task)
            if "draft" in phases:
                async with with_fixed_budget(on) as fixed:
                    jobs = (humaneval(plan.prompts, plan.source_bytes), gsm8k(plan.prompts, folder(cache)))
                    for job in (job for job in jobs if plan.task in (None, job.name)):
                        progress.update(task, description=f"draft {job.name}")
                        figures |= await drafting_figures(on, fixed, job, cache, plan.max_tokens, NAMESPACE)
                        write(figures, path, console, "Retrieval")
                progress.advance(task)
    write(figures, path, Console(), "Retrieval")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="up to 10^7 tokens and two prompts a task, under two minutes"
    )
    parser.add_argument("--phase", choices=PHASES, action="append", help="only this phase; may be given several times")
    parser.add_argument("--prompts", type=int, help="prompts a task of the drafting phase; default 12, quick 2")
    parser.add_argument("--task", choices=("humaneval", "gsm8k"), help="only this task of the drafting phase")
    parser.add_argument("--mapped", action="store_true", help="growth over mapped segments, not copied ones")
    parser.add_argument("--json", type=Path, help="where to write the figures as one flat object")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="models, indexes and tokenised text")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    plan = replace(plan, copied=not arguments.mapped, prompts=arguments.prompts or plan.prompts, task=arguments.task)
    asyncio.run(run(plan, arguments.phase or PHASES, arguments.cache, arguments.json))


if __name__ == "__main__":
    main()
