"""The verification algorithms by name, one a file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from verifier.selection.base import Selection, Verifier
from verifier.selection.greedy import Greedy
from verifier.selection.membership import GumbelCoupled, Membership
from verifier.selection.rejection import Rejection
from verifier.selection.specinfer import SpecInfer

_ALL: tuple[Verifier, ...] = (Greedy(), Membership(), GumbelCoupled(), Rejection(), SpecInfer())

VERIFIERS: Mapping[str, Verifier] = MappingProxyType({verifier.capability.name: verifier for verifier in _ALL})

__all__ = ["VERIFIERS", "Selection", "Verifier"]
