"""One Ray task of an index build: read a unit, build its segment, bring it into the store, report back in a few bytes.

Segments never pass through the driver, so neither its memory nor its disk bounds the corpus. A task is a function of the
unit and the order alone; one that is run twice (its node died) sends the same bytes under the same names.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import DraftproofError, FailedPrecondition
from retriever.build import Recipe, build_unit, input_digest
from retriever.exclusion import Exclusion
from retriever.publish import in_store, send_segment
from retriever.redis_store import RedisStore
from retriever.sources import Unit, read_unit
from retriever.unit_result import UnitResult
from services.text import CheckpointTokenizer


@dataclass(frozen=True)
class BuildOrder:
    """What all units of a build share; it travels to each node once.

    tokenizer_files: name to content of the checkpoint's small files. known: units built before, by input digest.
    redis_url: the store as the *nodes* reach it. publication: the lease that holds what tasks bring in.
    """

    tokenizer_files: Mapping[str, bytes]
    recipe: Recipe
    exclusion: Exclusion
    known: Mapping[str, UnitResult]
    redis_url: str
    redis_namespace: str
    publication: str


@dataclass(frozen=True)
class UnitDone:
    """The unit's account; reused: its segment was in the store already."""

    result: UnitResult
    reused: bool


@dataclass(frozen=True)
class UnitRefused:
    """A typed error, in parts: exceptions with arguments of their own do not survive pickling."""

    kind: type[DraftproofError]
    field: str
    message: str


def run_unit(order: BuildOrder, unit: Unit) -> UnitDone | UnitRefused:
    """Build the unit and bring its segment into the store."""
    # One task a core: the tokenizer's own threads would only fight over it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    store = RedisStore(order.redis_url, namespace=order.redis_namespace)
    try:
        return _run(order, unit, store)
    except DraftproofError as error:
        return UnitRefused(type(error), error.field, error.message)
    finally:
        store.close()


def _run(order: BuildOrder, unit: Unit, store: RedisStore) -> UnitDone:
    documents = list(read_unit(unit))
    known = order.known.get(input_digest(documents, order.recipe, order.exclusion))
    if known is not None and (not known.segment.tokens or in_store(store, known.segment)):
        return UnitDone(known, True)
    with tempfile.TemporaryDirectory(prefix="draftproof-tokenizer-") as directory:
        for name, content in order.tokenizer_files.items():
            (Path(directory) / name).write_bytes(content)
        tokenizer = CheckpointTokenizer(Path(directory))
        if tokenizer.digest != order.recipe.tokenizer_sha256:
            raise FailedPrecondition("tokenizer", f"{tokenizer.digest} here, the recipe binds another")
        result, data = build_unit(documents, tokenizer.encode_documents, order.recipe, order.exclusion)
    if result.segment.tokens and not in_store(store, result.segment):
        for _ in send_segment(store, order.publication, result.segment, data):
            pass
    return UnitDone(result, False)
