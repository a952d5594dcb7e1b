"""`draftproof index ...`: retrieval indexes in the release store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, TaskID
from rich.table import Table

from contracts.errors import NotFound
from retriever.redis_store import RedisStore
from services.settings import AllSettings, load

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Build and manage retrieval indexes. The store is DRAFTPROOF_REDIS_URL, or the embedded Redis of `draftproof up`.",
)


@contextmanager
def _store() -> Iterator[tuple[AllSettings, RedisStore]]:
    settings = load(AllSettings)
    store = RedisStore(settings.store_url, namespace=settings.redis_namespace)
    try:
        yield settings, store
    finally:
        store.close()


class StepBars:
    """One bar a step of a build, as `services.indexing.build_index` reports them."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars, self._name = bars, name
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        if step not in self._tasks:
            self._tasks[step] = self._bars.add_task(f"index {self._name}: {step}", total=total)
        self._bars.update(self._tasks[step], completed=done, total=total)


@app.command("build")
def build(
    name: Annotated[str, typer.Argument(help="Name of the index.")],
    paths: Annotated[list[Path], typer.Argument(help="Files and directories of documents.")],
    kind: Annotated[str, typer.Option(help="text, jsonl, parquet or arrow (a saved Hugging Face data set).")] = "text",
    field: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text",
    suffix: Annotated[
        list[str] | None,
        typer.Option(
            help="Which files of a directory, such as .js; default: .txt, .md, .rst and .py, or those of the kind."
        ),
    ] = None,
    split: Annotated[list[str] | None, typer.Option(help="Which splits of a saved Hugging Face data set.")] = None,
    licence: Annotated[str, typer.Option(help="Under which terms the documents are used.")] = "unstated",
    exclude: Annotated[
        list[Path] | None, typer.Option(help="Texts that must not be indexed (JSON lines or text).")
    ] = None,
    ngram: Annotated[
        int | None,
        typer.Option(
            help="With --exclude: drop documents that share so many consecutive words with a text; default 13."
        ),
    ] = None,
    tenant: Annotated[list[str] | None, typer.Option(help="Who may see the index; default: everybody.")] = None,
    unit_mib: Annotated[
        int, typer.Option(help="MiB of source that make a segment; 0: about 8 segments, of 16 to 128 MiB.", min=0)
    ] = 0,
    context_length: Annotated[
        int, typer.Option(help="Longest suffix that queries may match, in tokens.", min=1, max=4096)
    ] = 64,
    continuation_length: Annotated[
        int, typer.Option(help="Deepest continuation that queries may ask for, in tokens.", min=1, max=512)
    ] = 32,
    ray: Annotated[
        str,
        typer.Option(help="Build on a Ray cluster: local, auto or host:port. Paths and Redis as its nodes see them."),
    ] = "",
) -> None:
    """Build an index for the model's tokenizer, publish it, and point its name at it; retrievers follow at once.

    A build that was cut off goes on where it stopped. On Ray the same release comes out, byte for byte.

    Examples:

      draftproof index build code ~/src --licence Apache-2.0

      draftproof index build notes notes.jsonl --kind jsonl --field body --exclude evaluation.jsonl

      draftproof index build crawl /mnt/crawl --kind parquet --ray 10.0.0.1:6379
    """
    from retriever.sources import Kind, Source
    from services.cli.console import fetch_model, out, progress_bars
    from services.indexing import OnRay, build_index, read_excluded

    try:
        chosen = Kind(kind)
    except ValueError as error:
        raise typer.BadParameter(f"{kind!r} is not one of {', '.join(k.value for k in Kind)}") from error
    with _store() as (settings, store):
        checkpoint = fetch_model(settings.model, settings.models_dir)
        with progress_bars() as bars:
            built = build_index(
                store,
                name,
                [Source(path.resolve(), chosen, field, tuple(suffix or ()), tuple(split or ())) for path in paths],
                checkpoint,
                settings.cache_dir / "build",
                licence=licence,
                excluded=[text for path in exclude or () for text in read_excluded(path)],
                ngram=ngram,
                tenants=tenant or (),
                on_ray=OnRay(ray, settings.store_url, settings.redis_namespace) if ray else None,
                unit_bytes=unit_mib << 20 or None,
                context_length=context_length,
                continuation_length=continuation_length,
                progress=StepBars(bars, name),
            )
    report = built.report
    out.print(
        f"{name} version {built.alias.version}: release {built.alias.release_id[:16]}, {report.documents} documents, "
        f"{report.release.tokens} tokens in {len(report.release.segments)} segments ({report.reused} built before)"
    )
    out.print(
        f"left out: {report.excluded_exact} repeat an excluded text, {report.excluded_overlap} overlap with one, "
        f"{report.unreadable} are not Unicode text, {report.absent} are null; "
        f"exclusion {report.release.manifest.exclusion_sha256[:16] or 'none'}"
    )
    if built.passed_over:
        kinds = ", ".join(f"{number} {ending or 'without a suffix'}" for ending, number in built.passed_over.items())
        out.print(f"passed over: {sum(built.passed_over.values())} files of other kinds (--suffix takes them): {kinds}")


@app.command("list")
def list_() -> None:
    """Show every index: its version, its release, its size, who may see it, and how many releases it can go back.

    Example: draftproof index list
    """
    from retriever.release import release_from_bytes
    from services.cli.console import out

    table = Table("index", "version", "release", "tokens", "segments", "licence", "tenants", "earlier")
    with _store() as (_, store):
        for name, alias in store.aliases().items():
            release = release_from_bytes(store.get_release(alias.release_id), alias.release_id)
            table.add_row(
                name,
                str(alias.version),
                alias.release_id[:16],
                str(release.tokens),
                str(len(release.segments)),
                release.manifest.licence_policy,
                ", ".join(release.manifest.tenants) or "all",
                str(len(store.history(name)) - 1),
            )
    out.print(table)


@app.command()
def history(name: Annotated[str, typer.Argument(help="Name of the index.")]) -> None:
    """Show what an index pointed to, newest first; `steps` is what `rollback` takes.

    Example: draftproof index history code
    """
    from services.cli.console import out

    table = Table("steps", "version", "release")
    with _store() as (_, store):
        changes = store.history(name)
        if not changes:
            raise NotFound("index", f"the store has no index {name!r}")
        for steps, alias in enumerate(changes):
            table.add_row(str(steps), str(alias.version), alias.release_id)
    out.print(table)


@app.command()
def rollback(
    name: Annotated[str, typer.Argument(help="Name of the index.")],
    steps: Annotated[int, typer.Option(min=1, help="How many changes to go back.")] = 1,
) -> None:
    """Point an index at an earlier release; retrievers follow at once.

    Example: draftproof index rollback code --steps 2
    """
    from retriever.publish import rollback as roll
    from services.cli.console import out

    with _store() as (_, store):
        alias = roll(store, name, steps)
    out.print(f"{name} version {alias.version}: release {alias.release_id[:16]}")


@app.command()
def compact(
    name: Annotated[str, typer.Argument(help="Name of the index.")],
    tenant: Annotated[str, typer.Option(help="Whose live outputs; any of those who share them.")] = "",
    licence: Annotated[str, typer.Option(help="Under which terms the outputs are used.")] = "unstated",
    exclude: Annotated[
        list[Path] | None, typer.Option(help="The excluded texts that the index was built with, if any.")
    ] = None,
    ngram: Annotated[
        int | None, typer.Option(help="With --exclude: the --ngram that the index was built with; default 13.")
    ] = None,
) -> None:
    """Fold an index's live outputs into a new release and take them out of the stream.

    DRAFTPROOF_LIVE_POLICIES must be that of the retrievers. A release that strangers may see takes no live outputs: build
    the index with --tenant first. Outputs pass the same exclusion as the documents did: an index that was built with
    --exclude needs the same texts here.

    Examples:

      draftproof index compact code --tenant alice

      draftproof index compact code --tenant alice --exclude evaluation.jsonl --licence internal
    """
    from services.cli.console import fetch_model, out
    from services.indexing import compact_index, read_excluded

    with _store() as (settings, store):
        done, generation = compact_index(
            store,
            name,
            tenant,
            settings.segments_dir,
            checkpoint=fetch_model(settings.model, settings.models_dir),
            policies=settings.live_policies,
            licence=licence,
            excluded=[text for path in exclude or () for text in read_excluded(path)],
            ngram=ngram,
        )
    alias = done.alias
    out.print(
        f"{name} version {alias.version}: release {alias.release_id[:16]} holds {done.outputs} outputs of live generation "
        f"{generation}; left out: {done.excluded_exact} repeat an excluded text, {done.excluded_overlap} overlap with one"
    )


@app.command()
def gc(
    keep: Annotated[int, typer.Option(min=1, help="Releases of each index to keep, the present one included.")] = 3,
    grace_minutes: Annotated[int, typer.Option(min=0, help="Keep what was touched within this time.")] = 60,
) -> None:
    """Delete releases and segments that no index needs any more, leftovers of publications that died among them.

    It is safe beside running publications. A release beyond --keep can no longer be rolled back to.

    Example: draftproof index gc --keep 2
    """
    from services.cli.console import out

    with _store() as (_, store):
        gone = store.collect(grace_minutes * 60_000, keep)
    out.print(f"{len(gone)} deleted" + "".join(f"\n  {name}" for name in gone))
