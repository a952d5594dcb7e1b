"""From a request to a sealed manifest: everything that can be refused is refused here, before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from contracts.capability import SourceDescription, VerifierCapability, admit, check_made_for, choose
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.manifest import Manifest
from contracts.options import check_options
from contracts.ports import Tokenizer, VerifierDescription
from contracts.retrieval import IndexDescription
from contracts.sampling import SamplingPolicy, check_sampling
from orchestrator.catalogue import View
from orchestrator.request import GenerateRequest, check_budget
from orchestrator.retrieval_source import RETRIEVAL, describe_retrieval, index_of, is_retrieval
from orchestrator.settings import OrchestratorSettings
from orchestrator.strictness import strict_budget


@dataclass(frozen=True)
class Binding:
    """A bound source: its declaration, the position of its port, and its index if it retrieves."""

    description: SourceDescription
    port: int
    index: IndexDescription | None = None


@dataclass(frozen=True)
class Admitted:
    """A request that will run. `policy`: with max_tokens clipped to the context. `absent`: sources nobody ever showed."""

    prompt: tuple[int, ...]
    policy: SamplingPolicy
    capability: VerifierCapability
    manifest: Manifest
    bindings: tuple[Binding, ...]
    absent: Mapping[str, str]


def admit_request(
    request: GenerateRequest, view: View, tokenizer: Tokenizer, settings: OrchestratorSettings
) -> Admitted:
    """What needs the services' answers; `check_request` comes first. Raises InvalidArgument or FailedPrecondition."""
    served = view.verifier
    node_limit = min(settings.max_node_budget, served.max_rows)
    check_budget(request, node_limit)
    check_sampling(request.policy, vocab_size=served.target.vocab_size, eos_ids=served.eos_ids)
    if tokenizer.digest != served.target.tokenizer_digest:
        raise FailedPrecondition("tokenizer", "the orchestrator's tokenizer is not the target's")
    prompt = _encode(request, tokenizer, served)
    policy = _fit(request.policy, served.target.context_length - len(prompt))
    capability = choose(served.capabilities, request.verifier, policy)
    budget = min(settings.default_node_budget, node_limit) if request.node_budget is None else request.node_budget
    off = budget == 0 or not request.speculation or request.sources == ()
    if request.strict:
        budget = strict_budget(0 if off else budget, capability, served.target)
    bindings, absent = _bind_sources(request, view, settings, node_limit)
    for binding in bindings:
        name = binding.description.name
        check_options(request.options.get(name, {}), binding.description.options, path=f"options.{name}")
    if off:
        bindings, absent = (), {}
    admit(
        capability,
        [binding.description for binding in bindings],
        policy,
        exact_mode=request.exact_mode,
        tokenizer_digest=served.target.tokenizer_digest,
        target_digest=served.target.checkpoint_digest,
    )
    manifest = Manifest(
        target=served.target,
        sampling=policy.to_json(),
        sources=tuple(binding.description for binding in bindings),
        verifier=capability.name,
        exactness=capability.exactness,
        node_budget=0 if off else budget,
        max_depth=request.max_depth or settings.default_max_depth,
        budget=_policy_of(request, capability, settings),
        strict=request.strict,
        releases={b.description.name: b.index.release for b in bindings if b.index is not None},
        indexes={b.description.name: b.index.index for b in bindings if b.index is not None},
        tenant=request.tenant,
        options={f"{source}.{name}": n for source, chosen in request.options.items() for name, n in chosen.items()},
    )
    if request.expected_manifest_hash and request.expected_manifest_hash != manifest.hash:
        raise FailedPrecondition(
            "expected_manifest_hash", f"{request.expected_manifest_hash!r}, this request's is {manifest.hash!r}"
        )
    return Admitted(prompt, policy, capability, manifest, bindings, absent)


def _policy_of(request: GenerateRequest, capability: VerifierCapability, settings: OrchestratorSettings) -> str:
    """With laws, what is verified must not depend on what was drawn (DECISIONS 7)."""
    if not capability.needs_law:
        return request.budget or settings.budget
    if request.budget == "adaptive":
        raise FailedPrecondition("budget", f"verifier {capability.name!r} walks draft laws, which takes a fixed budget")
    return "fixed"


def _encode(request: GenerateRequest, tokenizer: Tokenizer, served: VerifierDescription) -> tuple[int, ...]:
    field, target = request.prompt_field, served.target
    if request.prompt_ids is not None:
        prompt = request.prompt_ids
    elif request.text is not None:
        prompt = tuple(tokenizer.encode(request.text))
    else:
        prompt = tuple(tokenizer.encode_chat(request.messages or ()))
    if not prompt:
        raise InvalidArgument(field, "gives no tokens")
    if len(prompt) >= target.context_length:
        raise InvalidArgument(
            field, f"{len(prompt)} tokens; the context of {target.context_length} must leave room for one more"
        )
    for index, token in enumerate(prompt):
        if not 0 <= token < target.vocab_size:
            raise InvalidArgument(f"{field}[{index}]", f"token id {token} is outside [0, {target.vocab_size})")
    return prompt


def _fit(policy: SamplingPolicy, room: int) -> SamplingPolicy:
    """Generation that would run past the context ends there by length, as in vLLM."""
    if policy.min_tokens > room:
        raise InvalidArgument("sampling.min_tokens", f"{policy.min_tokens}; the context leaves room for {room}")
    return replace(policy, max_tokens=room) if policy.max_tokens > room else policy


def _bind_sources(
    request: GenerateRequest, view: View, settings: OrchestratorSettings, node_limit: int
) -> tuple[tuple[Binding, ...], dict[str, str]]:
    names = settings.default_sources if request.sources is None else request.sources
    bindings: list[Binding] = []
    absent: dict[str, str] = {}
    for name in names:
        binding = _bind_index(name, request, view, settings, node_limit) if is_retrieval(name) else _find(name, view)
        if binding is not None:
            unfit = _unfit(binding.description, request, view)
            _check_another_index(binding, bindings)
            if unfit:
                absent[name] = unfit
            else:
                bindings.append(binding)
            continue
        peers = view.retrievers if is_retrieval(name) else view.proposers
        if request.sources is not None and None not in peers:
            known = ", ".join(sorted(_known(view))) or "none"
            raise InvalidArgument("sources", f"unknown source {name!r}; known: {known}")
        absent[name] = _why_absent(name, view)
    return tuple(bindings), absent


def _check_another_index(binding: Binding, bound: list[Binding]) -> None:
    """Two names of one index would have it asked twice for the same candidates."""
    for other in bound:
        if binding.index is not None and other.index is binding.index:
            names = f"{other.description.name!r} and {binding.description.name!r}"
            raise InvalidArgument("sources", f"{names} are both index {binding.index.index!r}: name it once")


def _why_absent(name: str, view: View) -> str:
    if None in (view.retrievers if is_retrieval(name) else view.proposers):
        return "its service has not answered yet"
    served = sorted({index.index for indexes in view.retrievers for index in indexes or ()})
    if name == RETRIEVAL and len(served) > 1:
        return f"several indexes are served, and none of them is the default: {', '.join(served)}"
    return "no service offers it"


def _find(name: str, view: View) -> Binding | None:
    for port, sources in enumerate(view.proposers):
        for description in sources or ():
            if description.name == name:
                return Binding(description, port)
    return None


def _bind_index(
    name: str, request: GenerateRequest, view: View, settings: OrchestratorSettings, node_limit: int
) -> Binding | None:
    served = {index.index: (port, index) for port, all_ in enumerate(view.retrievers) for index in all_ or ()}
    wanted = request.indexes.get(name) or index_of(name) or settings.default_index
    if not wanted and len(served) > 1 and request.sources is not None:
        raise InvalidArgument(f"indexes.{name}", f"several indexes are served, name one of {', '.join(sorted(served))}")
    if not wanted and len(served) == 1:
        wanted = next(iter(served))
    if wanted not in served:
        if request.indexes.get(name) and None not in view.retrievers:
            raise InvalidArgument(f"indexes.{name}", f"unknown index {wanted!r}; known: {', '.join(sorted(served))}")
        return None
    port, index = served[wanted]
    description = describe_retrieval(
        name,
        index,
        max_nodes=node_limit,
        max_suffix=settings.max_suffix,
        min_match=settings.retrieval_min_match,
        spec_factor=settings.retrieval_spec_factor,
    )
    return Binding(description, port, index)


def _unfit(source: SourceDescription, request: GenerateRequest, view: View) -> str:
    """Why a default source is left out; "" for one that fits, and for one that the request itself asks for: `admit` refuses
    that.
    """
    if request.sources is not None or source.name in request.indexes or source.name in request.options:
        return ""
    target = view.verifier.target
    try:
        check_made_for(source, tokenizer_digest=target.tokenizer_digest, target_digest=target.checkpoint_digest)
    except FailedPrecondition as error:
        return error.message
    return ""


def _known(view: View) -> set[str]:
    names = {description.name for sources in view.proposers for description in sources or ()}
    return names | {f"{RETRIEVAL}:{index.index}" for indexes in view.retrievers for index in indexes or ()}
