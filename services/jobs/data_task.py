"""One Ray task of data generation: the target answers a block of prompts. A function of the block and the order alone, so a
task that is run twice (its node died) gives the same conversations, and none of them depends on where the others ran."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from models.backend import Backend, BackendInfo
from models.load import Dtype, load_backend
from proposer.training.blocks import Block, Decoding, conversations
from proposer.training.generate import Conversation

# Rows a conversation may need: the longest prompt and the longest answer of the seed prompts.
ROWS = 1100


@dataclass(frozen=True)
class DataOrder:
    """What all blocks share. checkpoint: a directory that every node has; the driver checks its digest with each block."""

    checkpoint: Path
    dtype: Dtype
    decoding: Decoding


@dataclass(frozen=True)
class BlockDone:
    """conversations in the block's order; target: what computed them."""

    target: BackendInfo
    conversations: list[Conversation]


def describe(order: DataOrder) -> BackendInfo:
    """What a worker computes with."""
    return _backend(order.checkpoint, order.dtype, order.decoding.width).info


def run_block(order: DataOrder, block: Block) -> BlockDone:
    """Generate the block's conversations."""
    backend = _backend(order.checkpoint, order.dtype, order.decoding.width)
    found = {one.name: one for one in conversations(backend, block.prompts, order.decoding)}
    return BlockDone(backend.info, [found[one.prompt.name] for one in block.prompts])


@lru_cache(maxsize=1)
def _backend(checkpoint: Path, dtype: Dtype, width: int) -> Backend:
    # Workers live on between tasks, so a checkpoint is loaded once a worker; a task has one core.
    return load_backend(checkpoint, dtype=dtype, kv_budget_tokens=ROWS * width, threads=1)
