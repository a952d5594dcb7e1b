"""`draftproof train data`: seed prompts, disjointness, generation and shards, in that order; resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Protocol

from contracts.manifest import canonical_bytes, sha256_hex
from models.backend import Backend
from proposer.training.dataset import Dataset
from proposer.training.disjoint import Guard, Overlap
from proposer.training.generate import Conversation, Encoded, generate
from proposer.training.seed_prompts import Message, SeedPrompt, SeedTexts, first_stage, second_stage

_SHARD_CONVERSATIONS = 64
_MAX_PROMPT_TOKENS = 800

Progress = Callable[[int, int, int], None]


class ChatTokenizer(Protocol):
    """What generation needs of a tokenizer."""

    @property
    def digest(self) -> str: ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class DataPlan:
    """rounds: prompts of each kind in the first stage. width: conversations side by side. taps: hidden rows recorded."""

    rounds: int = 200
    seed: int = 0
    width: int = 32
    taps: tuple[str, ...] = ("final_norm",)


def identity_of(
    plan: DataPlan, backend: Backend, tokenizer: ChatTokenizer, prompts: Sequence[SeedPrompt], overlap: Overlap
) -> dict[str, Any]:
    """What a data set is: everything its conversations follow from. Its width is left out: it changes none of them."""
    return {
        "format": 1,
        "target": backend.info.checkpoint_digest,
        "dtype": backend.info.dtype,
        "backend": backend.info.backend,
        "tokenizer": tokenizer.digest,
        "template": "the checkpoint's chat template (part of the tokenizer digest)",
        "decoding": "greedy; 15% of the prompts sampled at temperature 1 (Gumbel-max keyed by seed, name, position)",
        "seed": plan.seed,
        "rounds": plan.rounds,
        "taps": list(plan.taps),
        "seed_prompts": sha256_hex(canonical_bytes({"prompts": [asdict(prompt) for prompt in prompts]})),
        "first_stage_prompts": len(prompts),
        "disjoint": asdict(overlap),
    }


def build(
    directory_of: Callable[[dict[str, Any]], Dataset],
    backend: Backend,
    tokenizer: ChatTokenizer,
    texts: SeedTexts,
    evaluation: Iterable[str],
    plan: DataPlan,
    *,
    eos_ids: Sequence[int],
    progress: Progress,
) -> Dataset:
    """Generate what is missing of the data set that `directory_of` opens for an identity.

    progress: called with (conversations done, conversations planned so far, answer tokens).
    Raises FailedPrecondition when that data set has another identity.
    """
    guard = Guard(evaluation)
    first = [one for one in first_stage(texts, rounds=plan.rounds, seed=plan.seed) if _admitted(one, guard)]
    dataset = directory_of(identity_of(plan, backend, tokenizer, first, guard.report()))
    writer = _Writer(dataset, progress)

    def run(prompts: Sequence[SeedPrompt]) -> None:
        missing = [one for one in prompts if one.name not in writer.names]
        writer.planned = len(writer.names) + len(missing)
        encoded = (Encoded(one, tokenizer.encode_chat(one.messages)) for one in missing)
        short = (one for one in encoded if len(one.token_ids) <= _MAX_PROMPT_TOKENS)
        for conversation in generate(backend, short, taps=plan.taps, eos_ids=eos_ids, width=plan.width, seed=plan.seed):
            writer.add(conversation)
        writer.flush()

    run(first)
    answers = {
        one.name: tokenizer.decode(one.tokens[one.answer_start :].tolist()) for one in dataset.conversations(taps=())
    }
    answered = [(one, answers[one.name]) for one in first if one.name in answers]
    second = [one for one in second_stage(answered, seed=plan.seed) if _admitted(one, guard)]
    run(second)
    return dataset


def _admitted(prompt: SeedPrompt, guard: Guard) -> bool:
    return guard.admits(" ".join(chain.from_iterable(message.values() for message in prompt.messages)))


class _Writer:
    """Collects conversations into shards and counts."""

    def __init__(self, dataset: Dataset, progress: Progress) -> None:
        self._dataset, self._progress = dataset, progress
        self._pending: list[Conversation] = []
        self.names = dataset.names()
        self._answer_tokens = sum(len(one.tokens) - one.answer_start for one in dataset.conversations(taps=()))
        self.planned = 0

    def add(self, conversation: Conversation) -> None:
        self._pending.append(conversation)
        self.names.add(conversation.name)
        self._answer_tokens += len(conversation.tokens) - conversation.answer_start
        self._progress(len(self.names), self.planned, self._answer_tokens)
        if len(self._pending) >= _SHARD_CONVERSATIONS:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            self._dataset.append(self._pending)
            self._pending = []
