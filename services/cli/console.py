"""What commands print: progress on standard error, results on standard output, tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from contracts.ledger import COMPONENTS, LedgerSum
from orchestrator.events import Final

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


@contextmanager
def progress_bars(console: Console = err) -> Iterator[Progress]:
    """Bars with elapsed time; a task without a total pulses."""
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    ) as bars:
        yield bars


def fetch_model(source: str, models_dir: Path, console: Console = err) -> Path:
    """The checkpoint's directory, fetched and converted first where that was not done, under a bar."""
    from models.checkpoint import resolve

    with progress_bars(console) as bars:
        task = bars.add_task(f"model {source}", total=None)
        directory = resolve(source, models_dir, lambda step: bars.update(task, description=f"model: {step}"))
        bars.update(task, description=f"model {source}", total=1, completed=1)
    return directory


def summary(final: Final) -> str:
    """One line about a generation."""
    ledger = final.certificate.ledger
    parts = [
        f"{final.usage.completion} tokens",
        f"{ledger.tokens_per_pass:.2f} a pass",
        f"{ledger.time_per_committed_token_us / 1000:.1f} ms a token",
        f"finish: {final.finish.value}",
        f"verifier: {final.certificate.verifier} ({final.certificate.exactness.value})",
    ]
    if final.usage.cached:
        parts.insert(1, f"{final.usage.cached} of {final.usage.prompt} prompt tokens cached")
    if ledger.speedup:
        parts.insert(parts.index(f"finish: {final.finish.value}"), f"{ledger.speedup:.2f}x the target's own step")
    parts.extend(
        f"{name}: {ledger.accepted_by.get(name, 0)} of {count} accepted" for name, count in ledger.proposed_by.items()
    )
    parts.extend(f"{name} failed: {reason}" for name, reason in final.certificate.failures.items())
    parts.extend(f"{name} absent: {reason}" for name, reason in final.certificate.absent.items())
    parts.extend(f"{name} by a forced calibration" for name in final.certificate.forced_calibrations)
    return " | ".join(parts)


def ledger_table(title: str, columns: Sequence[tuple[str, LedgerSum]]) -> Table:
    """Milliseconds a round by component, one column a way of decoding, and its totals."""
    table = Table(title=title)
    table.add_column("ms a round")
    for name, _ in columns:
        table.add_column(name, justify="right")
    for component in COMPONENTS:
        table.add_row(component, *(_per_round(ledger, ledger.components_us[component]) for _, ledger in columns))
    table.add_section()
    table.add_row("round", *(_per_round(ledger, ledger.total_us) for _, ledger in columns))
    table.add_row("tokens a pass", *(f"{ledger.tokens_per_pass:.2f}" for _, ledger in columns))
    table.add_row("ms a token", *(f"{ledger.time_per_committed_token_us / 1000:.2f}" for _, ledger in columns))
    return table


def _per_round(ledger: LedgerSum, total_us: float) -> str:
    return f"{total_us / ledger.rounds / 1000:.2f}" if ledger.rounds else "-"
