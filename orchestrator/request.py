"""What a client asks of Generate, and the checks that need no service's answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contracts.errors import InvalidArgument
from contracts.manifest import sha256_hex
from contracts.sampling import SamplingPolicy
from orchestrator.retrieval_source import index_of, is_retrieval

MAX_DEADLINE_MS = 24 * 3600 * 1000
BUDGETS = ("fixed", "adaptive")
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class GenerateRequest:
    """One generation. Exactly one of `prompt_ids`, `text` and `messages` is given; messages have a role (ROLES) and a
    content. Control tokens are taken from prompt_ids and text, never from a message.

    sources: None takes the orchestrator's defaults; () or `speculation=False` turns speculation off. node_budget:
    candidates per round over all sources, the anchor not counted; 0 turns speculation off; None takes the default.
    verifier: "" takes greedy at temperature 0 and membership above it. deadline_ms: from the call on; generation then
    ends with what is published. indexes, options: by source name, of sources that the request uses; names and options are
    checked with speculation off too. expected_manifest_hash: refuse any other manifest.
    cache_salt: the KV of prompt starts is shared only with requests of this salt, and of the same tenant.
    budget: "fixed" verifies all that is offered, so that the rounds depend on the text alone; "adaptive" what is likely to
    make tokens cheaper; "" takes the orchestrator's default. strict: publish bit for bit what plain decoding on the same
    target would, or be refused (orchestrator/strictness.py).
    """

    prompt_ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    policy: SamplingPolicy = field(default_factory=SamplingPolicy)
    sources: tuple[str, ...] | None = None
    speculation: bool = True
    node_budget: int | None = None
    max_depth: int | None = None
    verifier: str = ""
    exact_mode: bool = True
    deadline_ms: int | None = None
    tenant: str = ""
    indexes: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    request_id: str = ""
    expected_manifest_hash: str = ""
    cache_salt: str = ""
    budget: str = ""
    strict: bool = False

    @property
    def cache_scope(self) -> str:
        """What the verifier may share KV within. A digest of the pair, so that no salt of one tenant meets another's."""
        return sha256_hex(json.dumps([self.tenant, self.cache_salt]).encode())

    @property
    def prompt_field(self) -> str:
        """The name of the field that carries the prompt."""
        return "prompt_ids" if self.prompt_ids is not None else "text" if self.text is not None else "messages"


def _check_prompt(request: GenerateRequest) -> None:
    given = [name for name in ("prompt_ids", "text", "messages") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidArgument(
            "prompt", f"exactly one of prompt_ids, text and messages; got {', '.join(given) or 'none'}"
        )
    if not getattr(request, given[0]):
        raise InvalidArgument(given[0], "is empty")
    if request.text is not None:
        _check_characters("text", request.text)
    for index, message in enumerate(request.messages or ()):
        for key in ("role", "content"):
            if key not in message:
                raise InvalidArgument(f"messages[{index}].{key}", "is missing")
        if message["role"] not in ROLES:
            raise InvalidArgument(f"messages[{index}].role", f"{message['role']!r} is none of {', '.join(ROLES)}")
        _check_characters(f"messages[{index}].content", message["content"])


def _check_characters(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            field, f"character {error.start} is half of a surrogate pair, which is no text"
        ) from error


def check_budget(request: GenerateRequest, node_limit: int) -> None:
    """Raises InvalidArgument unless a pass of `node_limit` candidates can hold the request's budget."""
    if request.node_budget is not None and not 0 <= request.node_budget <= node_limit:
        raise InvalidArgument("node_budget", f"{request.node_budget} is outside [0, {node_limit}]")


def _check_sources(request: GenerateRequest, default_sources: Sequence[str]) -> None:
    sources = default_sources if request.sources is None else request.sources
    for index, name in enumerate(request.sources or ()):
        if not name or name in sources[:index]:
            raise InvalidArgument(f"sources[{index}]", f"{name!r} is empty or named twice")
        if name.endswith(":"):
            raise InvalidArgument(f"sources[{index}]", f"{name!r} names no index")
    used = "the request's sources" if request.sources is not None else "the default sources, and the request names none"
    for kind, named in (("indexes", request.indexes), ("options", request.options)):
        for name in named:
            if name not in sources:
                raise InvalidArgument(
                    f"{kind}.{name}", f"is not among {used}; those are: {', '.join(sources) or 'none'}"
                )
    for name, index_name in request.indexes.items():
        if not is_retrieval(name):
            raise InvalidArgument(f"indexes.{name}", "this source reads no index")
        if not index_name:
            raise InvalidArgument(f"indexes.{name}", "is empty")
        if index_of(name) not in ("", index_name):
            raise InvalidArgument(f"indexes.{name}", f"the source's name says another index than {index_name!r}")


def check_request(
    request: GenerateRequest, *, node_limit: int, depth_limit: int, default_sources: Sequence[str] = ()
) -> None:
    """default_sources: those of a request that names none. Raises InvalidArgument naming the field."""
    _check_prompt(request)
    check_budget(request, node_limit)
    if request.max_depth is not None and not 1 <= request.max_depth <= depth_limit:
        raise InvalidArgument("max_depth", f"{request.max_depth} is outside [1, {depth_limit}]")
    if request.deadline_ms is not None and not 1 <= request.deadline_ms <= MAX_DEADLINE_MS:
        raise InvalidArgument("deadline_ms", f"{request.deadline_ms} is outside [1, {MAX_DEADLINE_MS}]")
    if request.budget not in ("", *BUDGETS):
        raise InvalidArgument("budget", f"unknown {request.budget!r}; known: {', '.join(BUDGETS)}")
    _check_sources(request, default_sources)
