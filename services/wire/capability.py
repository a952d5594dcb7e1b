"""Declarations of verifiers and sources on the wire."""

from __future__ import annotations

from contracts.capability import SourceDescription, VerifierCapability
from contracts.errors import InvalidArgument
from contracts.options import SourceOption
from protos.draftproof.v1 import capability_pb2 as pb
from services.wire.scalars import EXACTNESS, RELATIONS, SEMANTICS, TOPOLOGIES


def encode_capability(capability: VerifierCapability) -> pb.VerifierCapability:
    """Sets are sent in order of their names."""
    return pb.VerifierCapability(
        name=capability.name,
        exactness=EXACTNESS.encode(capability.exactness),
        promise=capability.promise,
        semantics=[SEMANTICS.encode(item) for item in sorted(capability.semantics)],
        relations=[RELATIONS.encode(item) for item in sorted(capability.relations)],
        topologies=[TOPOLOGIES.encode(item) for item in sorted(capability.topologies)],
        needs_law=capability.needs_law,
        identical_laws=capability.identical_laws,
        single_source=capability.single_source,
        greedy_only=capability.greedy_only,
        sampling_only=capability.sampling_only,
    )


def decode_capability(message: pb.VerifierCapability) -> VerifierCapability:
    """Raises InvalidArgument naming the field for unknown enumeration values."""
    return VerifierCapability(
        name=message.name,
        exactness=EXACTNESS.decode(message.exactness, "capability.exactness"),
        promise=message.promise,
        semantics=frozenset(SEMANTICS.decode(item, "capability.semantics") for item in message.semantics),
        relations=frozenset(RELATIONS.decode(item, "capability.relations") for item in message.relations),
        topologies=frozenset(TOPOLOGIES.decode(item, "capability.topologies") for item in message.topologies),
        needs_law=message.needs_law,
        identical_laws=message.identical_laws,
        single_source=message.single_source,
        greedy_only=message.greedy_only,
        sampling_only=message.sampling_only,
    )


def encode_source(source: SourceDescription) -> pb.SourceDescription:
    """Raises InvalidArgument for a negative node limit or number of rows."""
    for name, value in (("max_nodes", source.max_nodes), ("prompt_rows", source.prompt_rows)):
        if value < 0:
            raise InvalidArgument(f"sources.{name}", f"{value} is negative")
    return pb.SourceDescription(
        name=source.name,
        kind=source.kind,
        version=source.version,
        semantics=SEMANTICS.encode(source.semantics),
        relation=RELATIONS.encode(source.relation),
        topology=TOPOLOGIES.encode(source.topology),
        tokenizer_digest=source.tokenizer_digest,
        target_digest=source.target_digest,
        max_nodes=source.max_nodes,
        taps=source.taps,
        prompt_rows=source.prompt_rows,
        options=[
            pb.OptionDescription(
                name=option.name,
                low=option.low,
                high=option.high,
                default_value=option.default,
                not_below=option.not_below,
            )
            for option in source.options
        ],
    )


def decode_source(message: pb.SourceDescription) -> SourceDescription:
    """Raises InvalidArgument naming the field for unknown enumeration values."""
    return SourceDescription(
        name=message.name,
        kind=message.kind,
        version=message.version,
        semantics=SEMANTICS.decode(message.semantics, "sources.semantics"),
        relation=RELATIONS.decode(message.relation, "sources.relation"),
        topology=TOPOLOGIES.decode(message.topology, "sources.topology"),
        tokenizer_digest=message.tokenizer_digest,
        target_digest=message.target_digest,
        max_nodes=message.max_nodes,
        taps=tuple(message.taps),
        options=_decode_options(message),
        prompt_rows=message.prompt_rows,
    )


def _decode_options(message: pb.SourceDescription) -> tuple[SourceOption, ...]:
    names = {option.name for option in message.options}
    for index, option in enumerate(message.options):
        if option.not_below and option.not_below not in names:
            raise InvalidArgument(f"sources.options[{index}].not_below", f"{option.not_below!r} is no option")
    return tuple(
        SourceOption(option.name, option.low, option.high, option.default_value, option.not_below)
        for option in message.options
    )
