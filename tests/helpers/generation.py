"""Orchestrators over fakes, and short ways to ask them."""

from contracts.sampling import SamplingPolicy
from orchestrator.generate import Orchestrator
from orchestrator.request import GenerateRequest
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import (
    EOS,
    FakeProposer,
    FakeTokenizer,
    FakeVerifier,
    babble,
    oracle,
    reciting,
)

PROMPT = "a prompt, a prompt"
GREEDY = SamplingPolicy(temperature=0.0, max_tokens=40)
SAMPLED = SamplingPolicy(temperature=0.8, max_tokens=40, seed=7)
PATIENT = OrchestratorSettings(propose_deadline_ms=60_000.0)


def corpus() -> list[int]:
    """What the babbling target tends to say, so that retrieval has hits."""
    tokens = list(PROMPT.encode())
    for _ in range(200):
        tokens.append(int(babble(tokens).argmax()))
    return tokens


def orchestrator(verifier, *, proposers=None, retrievers=(), settings=PATIENT) -> Orchestrator:
    proposers = [FakeProposer()] if proposers is None else proposers
    return Orchestrator(verifier, proposers, list(retrievers), FakeTokenizer(), settings)


def ask(**fields) -> GenerateRequest:
    prompt = {} if {"prompt_ids", "text", "messages"} & set(fields) else {"text": PROMPT}
    return GenerateRequest(**{"policy": GREEDY, **prompt, **fields})


def reciter(text: str | bytes, end: int = EOS) -> FakeVerifier:
    return FakeVerifier(reciting(len(PROMPT), text, end))


def drafted(verifier: FakeVerifier) -> Orchestrator:
    """Everything that its one source, `oracle`, offers is accepted at temperature 0."""
    return orchestrator(verifier, proposers=[FakeProposer({"oracle": oracle(verifier.logits)})])


def tokens_of(chunks) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def text_of(chunks) -> str:
    return "".join(chunk.text for chunk in chunks)
