"""The verification algorithms by name, one a file.

`smc` is what a session of a particle group runs (verifier/particle_group.py); admission refuses it to every other session.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from verifier.selection.base import Selection, Verifier
from verifier.selection.block import Block
from verifier.selection.greedy import Greedy
from verifier.selection.membership import GumbelCoupled, Membership
from verifier.selection.rejection import Rejection
from verifier.selection.sequoia import Sequoia
from verifier.selection.smc import Smc
from verifier.selection.specinfer import SpecInfer
from verifier.selection.spectr import SpecTr
from verifier.selection.traversal import Traversal
from verifier.selection.typical import Typical

_ALL: tuple[Verifier, ...] = (
    Greedy(),
    Membership(),
    GumbelCoupled(),
    Rejection(),
    Block(),
    SpecTr(),
    SpecInfer(),
    Sequoia(),
    Traversal(),
    Typical(),
    Smc(),
)

VERIFIERS: Mapping[str, Verifier] = MappingProxyType({verifier.capability.name: verifier for verifier in _ALL})

__all__ = ["VERIFIERS", "Selection", "Verifier"]
