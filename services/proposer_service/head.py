"""A draft head from its settings: its package, and the store that its sessions' hidden rows go to. Imports torch."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from contracts.errors import NotFound
from contracts.topology import SamplingRelation
from models.checkpoint import resolve, tokenizer_digest
from models.config import read_config
from proposer.heads.families import LoadedHead, load_head
from proposer.heads.package import MANIFEST
from proposer.heads.shipped import shipped_head
from proposer.heads.source import HeadSettings, HeadSource
from proposer.hidden_store import HiddenStore
from proposer.source import Source
from services.checkpoint_files import eos_ids
from services.drafting import drafting_of
from services.settings import ProposerSettings
from services.trees import tree_of

NAME = "head"
# Nodes less likely than this do not pay for their row of a pass; below nodes less likely than that, too little is found to
# pay for the level that would find it.
_FLOOR, _PARENT_FLOOR = 0.05, 0.2
_log = logging.getLogger(__name__)


def head_directory(head: str) -> Path:
    """The package that the setting names. Raises NotFound where there is none."""
    shipped = shipped_head(head)
    if shipped is not None:
        return shipped
    if not (Path(head) / MANIFEST).is_file():
        raise NotFound("DRAFTPROOF_HEAD", f"{head!r} is no directory of a head package, and no head is shipped for it")
    return Path(head)


def load_served(settings: ProposerSettings) -> tuple[LoadedHead, HiddenStore]:
    """The head of the settings, and the store that the host of its sources feeds.

    Raises NotFound where the setting names no package, and what refuses a package (another target, tokenizer, vocabulary or
    format; missing or changed tensors).
    """
    directory = head_directory(settings.head)
    checkpoint = resolve(settings.model, settings.models_dir, _log.info)
    loaded = load_head(
        directory,
        checkpoint,
        tokenizer_digest=tokenizer_digest(checkpoint),
        eos_ids=eos_ids(checkpoint),
        kv_budget_tokens=settings.draft_kv_tokens,
        threads=settings.draft_threads or len(os.sched_getaffinity(0)),
        dtype=getattr(torch, settings.head_dtype),
    )
    return loaded, HiddenStore(hidden_size=read_config(checkpoint).hidden_size, most_bytes=settings.head_rows_mb << 20)


def build_head(settings: ProposerSettings) -> tuple[Source, HiddenStore]:
    """The head as a source, with the tree of its settings, and its store. Raises as `load_served` and `tree_of` do."""
    loaded, store = load_served(settings)
    shape = HeadSettings(
        relation=SamplingRelation(settings.head_relation),
        tree=tree_of(settings.head_tree, nodes=settings.head_nodes, drafting=drafting_of(settings)),
        max_nodes=settings.head_nodes,
        floor=_FLOOR,
        parent_floor=_PARENT_FLOOR,
        prompt_rows=settings.head_prompt_rows,
    )
    return HeadSource(loaded, store.of(loaded.head.taps), shape, name=NAME), store
