"""What each family is trained with: sizes, objective, learning rate. One table, so that a comparison is one budget apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from torch import nn

from contracts.errors import InvalidArgument
from proposer.heads.clover import CloverNetwork
from proposer.heads.eagle import FINAL, EagleNetwork
from proposer.heads.hydra import HydraNetwork
from proposer.heads.manifest_checks import MAX_DEPTH
from proposer.heads.medusa import MedusaNetwork
from proposer.training.corpus import Batch
from proposer.training.eagle import EagleObjective
from proposer.training.futures import FutureObjective
from proposer.training.losses import Score

NAMES = ("medusa", "medusa-own", "hydra", "hydra++", "clover", "eagle", "eagle3")
EAGLES = ("eagle", "eagle3")
# Those with a decoder layer of their own.
LAYERED = ("hydra++", "clover", *EAGLES)

Scores = Callable[[nn.Module, Batch], Sequence[Score]]


@dataclass(frozen=True)
class FamilyRecipe:
    """depth: heads, or depths trained for (0 in the manifest where drafts may be any depth). shape: as in HeadManifest.
    noise: on an EAGLE head's inputs. own: conversations' own tokens are labels too, as an EAGLE head's trees draft them."""

    family: str
    depth: int
    scores: Scores
    learning_rate: float
    taps: tuple[str, ...] = (FINAL,)
    shape: dict[str, int] = field(default_factory=dict)
    projection: str = "shared"
    objective: str = ""
    noise: float = 0.0
    own: bool = False

    @property
    def recurrent(self) -> bool:
        return self.family in EAGLES


def recipe_of(
    name: str, *, depth: int = 0, inner: int = 0, taps: Sequence[str] = (), noise: float = 0.0, own: bool = False
) -> FamilyRecipe:
    """The recipe called `name`: a family, or "medusa-own" for heads with vocabulary rows of their own.

    depth, inner, taps, noise: override the recipe's depth, the width of its decoder layer's MLP, its taps, and the noise on
    an EAGLE head's inputs where given. own: whether conversations' own tokens are labels of an EAGLE head.
    Raises InvalidArgument for an unknown name, for an option that the family has no use for and a depth beyond MAX_DEPTH.
    """
    if name not in NAMES:
        raise InvalidArgument("family", f"{name!r} is none of {', '.join(NAMES)}")
    if not 0 <= depth <= MAX_DEPTH:
        raise InvalidArgument("depth", f"{depth} is outside [0, {MAX_DEPTH}]; 0 is the family's own")
    for option, given, users in (
        ("inner", inner, LAYERED),
        ("taps", taps, ("eagle3",)),
        ("noise", noise, EAGLES),
        ("own", own, EAGLES),
    ):
        if given and name not in users:
            raise InvalidArgument(option, f"{given!r} is of no use to {name}; it is read by {', '.join(users)}")
    if inner < 0 or noise < 0.0:
        raise InvalidArgument("inner" if inner < 0 else "noise", "is negative")
    steps = depth or (3 if name in EAGLES else 4)
    eagle = EagleObjective(steps=steps, feature_weight=0.1 if name == "eagle" else 0.0, noise=noise)
    hard, soft = FutureObjective(), FutureObjective(soft=True)
    layer = {"inner": inner} if inner else {}
    table: dict[str, FamilyRecipe] = {
        "medusa": FamilyRecipe("medusa", steps, _medusa(hard), 1e-3, shape={"blocks": 1}, objective="hard labels"),
        "medusa-own": FamilyRecipe(
            "medusa", steps, _medusa(hard), 5e-4, shape={"blocks": 1}, projection="own", objective="hard labels"
        ),
        "hydra": FamilyRecipe(
            "hydra", steps, _hydra(hard), 1e-3, shape={"blocks": 1, "prefix": 0}, objective="hard labels"
        ),
        "hydra++": FamilyRecipe(
            "hydra++", steps, _hydra(soft), 1e-3, shape={"blocks": 4, "prefix": 1, **layer}, objective="teacher law"
        ),
        "clover": FamilyRecipe(
            "clover", steps, _clover(hard), 1e-3, shape={"prefix": 1, **layer}, objective="hard labels"
        ),
        "eagle": FamilyRecipe(
            "eagle",
            steps,
            _eagle(eagle),
            1e-4,
            shape=layer,
            objective=f"teacher law, features, {steps} steps",
            noise=noise,
            own=own,
        ),
        "eagle3": FamilyRecipe(
            "eagle3",
            steps,
            _eagle(eagle),
            1e-4,
            taps=tuple(taps) or ("layer:2", "layer:14", FINAL),
            shape=layer,
            objective=f"teacher law, {steps} steps",
            noise=noise,
            own=own,
        ),
    }
    return table[name]


def _medusa(objective: FutureObjective) -> Scores:
    return lambda network, batch: objective.medusa(cast(MedusaNetwork, network), batch)


def _hydra(objective: FutureObjective) -> Scores:
    return lambda network, batch: objective.hydra(cast(HydraNetwork, network), batch)


def _clover(objective: FutureObjective) -> Scores:
    return lambda network, batch: objective.clover(cast(CloverNetwork, network), batch)


def _eagle(objective: EagleObjective) -> Scores:
    return lambda network, batch: objective.scores(cast(EagleNetwork, network), batch)
