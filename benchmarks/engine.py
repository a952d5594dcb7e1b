"""The verifier engine: one pass beside the memory's limit, streams and concurrency beside peers, memory and start-up.

    python -m benchmarks.engine [--quick] [--phase pass|streams|int4|concurrency|memory] [--records FILE] [--json FILE]

Peers are installed on first use, each into an environment of its own under <cache>/peers; one that cannot be is reported
with the reason. With --records a run that was cut (or ended by --at-most) goes on where it ended, when it is started again.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import engine_concurrency, engine_memory, engine_pass, engine_streams
from benchmarks.engine_records import Records
from benchmarks.figures import write
from benchmarks.stacks import checkpoint_directory
from models.checkpoint import digest

PHASES = ("pass", "streams", "int4", "concurrency", "memory")


@dataclass(frozen=True)
class Plan:
    """How much each phase runs."""

    passes: engine_pass.PassPlan
    streams: engine_streams.StreamPlan
    concurrency: engine_concurrency.ConcurrencyPlan
    memory: engine_memory.MemoryPlan


FULL = Plan(
    engine_pass.PassPlan(repeats=30),
    engine_streams.StreamPlan(prompts=12, max_tokens=128),
    engine_concurrency.ConcurrencyPlan(bursts={1: 12, 2: 8, 4: 6, 8: 6, 16: 4}, max_tokens=64),
    engine_memory.MemoryPlan(sessions={256: 4, 1024: 4, 4096: 2}, starts=3, soak_minutes=10.0),
)
QUICK = Plan(
    engine_pass.PassPlan(repeats=5),
    engine_streams.StreamPlan(prompts=3, max_tokens=24),
    engine_concurrency.ConcurrencyPlan(bursts={1: 1, 8: 1}, max_tokens=16),
    engine_memory.MemoryPlan(sessions={256: 2}, starts=1, soak_minutes=1.0),
)


async def run(plan: Plan, phases: tuple[str, ...], records: Records, cache: Path, path: Path | None) -> None:
    """The phases asked for; figures are written after each, so that a cut run leaves what it measured."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    checkpoint = checkpoint_directory(cache)
    figures: dict[str, float | int | str | bool] = {"checkpoint": f"{checkpoint.name}, from a Q4_1 file"}
    for phase in phases:
        missing: dict[str, str] = {}
        with Progress(*columns, console=console) as progress:
            if phase == "pass":
                engine_pass.measure(records, plan.passes, checkpoint, progress)
                figures |= engine_pass.figures(records, checkpoint)
            elif phase == "streams":
                missing = await engine_streams.measure(records, plan.streams, cache, progress)
                figures |= engine_streams.figures(records)
            elif phase == "int4":
                missing = await engine_streams.measure(records, plan.streams, cache, progress, engine_streams.INT4)
                figures |= engine_streams.figures(records, engine_streams.INT4)
            elif phase == "concurrency":
                missing = await engine_concurrency.measure(records, plan.concurrency, cache, progress)
                figures |= engine_concurrency.figures(records)
            else:
                await engine_memory.measure(records, plan.memory, cache, progress)
                figures |= engine_memory.figures(records)
        figures |= {f"missing_{name}": reason for name, reason in missing.items()}
        figures["cut"] = records.cut
        write(figures, path, Console(), f"Engine, {phase}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a little of each phase")
    parser.add_argument("--phase", choices=PHASES, help="one phase only")
    parser.add_argument("--records", type=Path, help="file of measured units, kept from run to run")
    parser.add_argument("--at-most", type=float, default=float("inf"), help="seconds after which no unit is begun")
    parser.add_argument("--json", type=Path, help="where to write the figures as one flat object")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="models, index, peers")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    phases = (arguments.phase,) if arguments.phase else PHASES
    about = {
        "checkpoint": digest(checkpoint_directory(arguments.cache)),
        "machine": f"{platform.machine()}, {platform.node()}",
        "plan": asdict(plan),
    }
    records = Records(arguments.records, about, arguments.at_most)
    asyncio.run(run(plan, phases, records, arguments.cache, arguments.json))


if __name__ == "__main__":
    main()
