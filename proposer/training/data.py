"""`draftproof train data`: seed prompts, disjointness, generation and shards, in that order; resumable block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Protocol

from contracts.manifest import canonical_bytes, sha256_hex
from models.backend import BackendInfo
from proposer.training.blocks import Produce, blocks_of
from proposer.training.dataset import Dataset
from proposer.training.disjoint import Guard
from proposer.training.generate import Conversation, Encoded
from proposer.training.seed_domains import DomainTexts, domain_stage, interleaved
from proposer.training.seed_prompts import Message, SeedPrompt, SeedTexts, first_stage, second_stage

_MAX_PROMPT_TOKENS = 800

_NO_DOMAINS = DomainTexts()

Progress = Callable[[int, int, int], None]


class ChatTokenizer(Protocol):
    """What generation needs of a tokenizer."""

    @property
    def digest(self) -> str: ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class DataPlan:
    """rounds: prompts of each kind in the first stage. taps: hidden rows recorded. command: that made the data, for the
    record; "" where there was none."""

    rounds: int = 200
    seed: int = 0
    taps: tuple[str, ...] = ("final_norm",)
    command: str = ""


def identity_of(
    plan: DataPlan, target: BackendInfo, tokenizer: ChatTokenizer, prompts: Sequence[SeedPrompt], guard: Guard
) -> dict[str, Any]:
    """What a data set is: everything its shards follow from. Who generates them is left out: it changes no byte.

    disjoint: refusals of the first stage; those of both are in the record. evaluation: digest of the texts that nothing may
    overlap; data sets without it were made before it was kept.
    """
    return {
        "format": 2,
        "target": target.checkpoint_digest,
        "dtype": target.dtype,
        "backend": target.backend,
        "tokenizer": tokenizer.digest,
        "template": "the checkpoint's chat template (part of the tokenizer digest)",
        "decoding": "greedy; 15% of the prompts sampled at temperature 1 (Gumbel-max keyed by seed, name, position)",
        "seed": plan.seed,
        "rounds": plan.rounds,
        "taps": list(plan.taps),
        "seed_prompts": sha256_hex(canonical_bytes({"prompts": [asdict(prompt) for prompt in prompts]})),
        "first_stage_prompts": len(prompts),
        "disjoint": asdict(guard.report()),
        "evaluation": guard.digest,
    }


def build(
    directory_of: Callable[[dict[str, Any]], Dataset],
    target: BackendInfo,
    produce: Produce,
    tokenizer: ChatTokenizer,
    texts: SeedTexts,
    evaluation: Iterable[str],
    plan: DataPlan,
    *,
    progress: Progress,
    domains: DomainTexts = _NO_DOMAINS,
) -> Dataset:
    """Generate what is missing of the data set that `directory_of` opens for an identity.

    produce: who generates, with the plan's seed and taps. progress: called with (conversations done, conversations planned
    so far, answer tokens). domains: text of others that the first stage asks about too. What was left out over both stages,
    and why, is the data set's record.
    Raises FailedPrecondition when that data set has another identity.
    """
    guard = Guard(evaluation)
    general = first_stage(texts, rounds=plan.rounds, seed=plan.seed)
    asked = interleaved(general, domain_stage(domains, seed=plan.seed))
    first = [one for one in asked if _admitted(one, guard)]
    dataset = directory_of(identity_of(plan, target, tokenizer, first, guard))
    counted = _Counted(dataset, progress)
    too_long = 0

    def run(prompts: Sequence[SeedPrompt], number: int) -> int:
        nonlocal too_long
        encoded = [Encoded(one, tokenizer.encode_chat(one.messages)) for one in prompts]
        short = [one for one in encoded if len(one.token_ids) <= _MAX_PROMPT_TOKENS]
        too_long += len(encoded) - len(short)
        blocks = blocks_of(short, number)
        missing = [block for block in blocks if not dataset.has(block.number)]
        counted.planned = counted.done + sum(len(block.prompts) for block in missing)
        for block, conversations in produce(missing, counted.add):
            dataset.append(conversations, block.number)
        return number + len(blocks)

    second_starts = run(first, 0)
    answers = {
        one.name: tokenizer.decode(one.tokens[one.answer_start :].tolist()) for one in dataset.conversations(taps=())
    }
    answered = [(one, answers[one.name]) for one in first if one.name in answers]
    second = [one for one in second_stage(answered, seed=plan.seed) if _admitted(one, guard)]
    run(second, second_starts)
    dataset.keep_record(
        {
            "command": plan.command,
            "build": target.build,
            "disjoint": asdict(guard.report()),
            "evaluation": guard.digest,
            "prompts": {"first_stage": len(first), "second_stage": len(second), "too_long": too_long},
            "max_prompt_tokens": _MAX_PROMPT_TOKENS,
            "conversations": counted.done,
        }
    )
    return dataset


def _admitted(prompt: SeedPrompt, guard: Guard) -> bool:
    return guard.admits(" ".join(chain.from_iterable(message.values() for message in prompt.messages)))


class _Counted:
    """What is done, for the progress bar."""

    def __init__(self, dataset: Dataset, progress: Progress) -> None:
        self._progress = progress
        self.done = self.planned = self._answer_tokens = 0
        for one in dataset.conversations(taps=()):
            self._count(one)

    def add(self, conversation: Conversation) -> None:
        self._count(conversation)
        self._progress(self.done, self.planned, self._answer_tokens)

    def _count(self, conversation: Conversation) -> None:
        self.done += 1
        self._answer_tokens += len(conversation.tokens) - conversation.answer_start
