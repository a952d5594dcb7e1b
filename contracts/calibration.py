"""A calibration: what was measured to shape trees, for whom it holds, and its canonical bytes (M7.7 section 0x0AE).

An old tree is no error, verification stays exact; it only gives the speed-up away. So a calibration made for another target,
sampler or hardware profile is refused, and may be forced, which its label in the manifest then says.

Counts and nanoseconds are integers, so that the file says exactly what was measured; rates are computed where they are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

from contracts.errors import DataLoss, FailedPrecondition, InvalidArgument
from contracts.manifest import TargetIdentity, canonical_bytes, sha256_hex
from contracts.sampling import SamplingPolicy
from contracts.tree_shape import TreeShape

FORMAT = "draftproof-calibration/2"

# What of a policy shapes acceptance. Seeds and lengths do not; stop ids and bans are a request's own affair.
SAMPLER_FIELDS = (
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
# What of a target must be the same. Its name and context length may differ.
TARGET_FIELDS = ("checkpoint_digest", "tokenizer_digest", "dtype", "backend", "build", "hardware")

Counts = tuple[tuple[int, ...], ...]


def sampler_of(policy: SamplingPolicy) -> dict[str, Any]:
    """The law-shaping fields of a policy, temperature aside. At temperature 0 the truncations shape nothing."""
    given = policy.to_json()
    neutral = SamplingPolicy().to_json()
    greedy_free = {"top_k", "top_p", "min_p", "typical_p"} if policy.greedy else set()
    return {name: neutral[name] if name in greedy_free else given[name] for name in SAMPLER_FIELDS}


@dataclass(frozen=True)
class Calibration:
    """target: where it was measured. source, source_version: what proposed, measuring tree included; drafter: digest of what
    proposed whatever the tree, "" where that is not known: then it holds for no drafter unless forced. drafting: type,
    build and hardware that it drafted with, which draft_ns follows from; "" where there is no drafter.
    relation, verifier: under which pair.

    sampler: `sampler_of` the policy; temperatures: lowest and highest it holds for. prompts: names of the files;
    prompts_digest: SHA-256 over the prompts' tokens; prompt_count: of them used. made_on: ISO date. code: version of this
    software. sessions: batch size of every pass. context: committed rows below the measured passes.
    trials[d][r]: how often the child of rank r at depth d + 1 was offered below a reached parent; hits: how often it was
    the one selected. rounds, committed: of the whole measurement. curve: (rows, nanoseconds) of a target pass.
    draft_ns: one level of drafting; fixed_ns: a round with candidates beyond a plain one, overhead_ns: a plain one beyond
    its pass. tree: parents of the shape chosen from all this. Raises InvalidArgument naming the field that is impossible.
    """

    target: TargetIdentity
    source: str
    source_version: str
    drafter: str
    drafting: str
    relation: str
    verifier: str
    sampler: Mapping[str, Any]
    temperatures: tuple[float, float]
    prompts: tuple[str, ...]
    prompts_digest: str
    prompt_count: int
    made_on: str
    code: str
    sessions: int
    context: int
    trials: Counts
    hits: Counts
    rounds: int
    committed: int
    curve: tuple[tuple[int, int], ...]
    draft_ns: int
    fixed_ns: int
    overhead_ns: int
    tree: tuple[int, ...] = ()
    format: str = field(default=FORMAT)

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InvalidArgument("calibration.format", f"{self.format!r} is not {FORMAT!r}")
        if len(self.trials) != len(self.hits) or not self.trials:
            raise InvalidArgument("calibration.hits", "needs one row per depth, as many as trials")
        for d, (tried, hit) in enumerate(zip(self.trials, self.hits, strict=True)):
            if len(tried) != len(self.trials[0]) or len(hit) != len(tried) or not tried:
                raise InvalidArgument(f"calibration.hits[{d}]", "needs one count per rank, as many at every depth")
            if any(not 0 <= h <= t for h, t in zip(hit, tried, strict=True)):
                raise InvalidArgument(f"calibration.hits[{d}]", "hits must be within [0, trials]")
        if any(count < 0 for count in (self.rounds, self.committed, self.draft_ns, self.fixed_ns, self.overhead_ns)):
            raise InvalidArgument("calibration", "counts and times must not be negative")
        rows = [count for count, _ in self.curve]
        if not rows or rows[0] != 1 or any(b <= a for a, b in pairwise(rows)) or min(ns for _, ns in self.curve) <= 0:
            raise InvalidArgument("calibration.curve", "needs positive times of ascending rows, from one row on")
        TreeShape(self.tree)
        if not 0.0 <= self.temperatures[0] <= self.temperatures[1]:
            raise InvalidArgument("calibration.temperatures", f"{self.temperatures} is no range")

    def to_json(self) -> dict[str, Any]:
        """A plain mapping of every field."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"target": dict(self.target.__dict__)}

    @cached_property
    def hash(self) -> str:
        """SHA-256 hex of the canonical bytes of `to_json`."""
        return sha256_hex(canonical_bytes(self.to_json()))

    def to_bytes(self) -> bytes:
        """The file: canonical JSON of the calibration and its hash, one line."""
        return canonical_bytes({"calibration": self.to_json(), "sha256": self.hash}) + b"\n"

    def mismatches(
        self, target: TargetIdentity, policy: SamplingPolicy, verifier: str = ""
    ) -> tuple[tuple[str, str], ...]:
        """(field, what differs) for all of a session that makes this calibration another one's; empty where it holds.

        verifier: "" where it is not known.
        """
        found = []
        for name in TARGET_FIELDS:
            mine, theirs = getattr(self.target, name), getattr(target, name)
            if mine != theirs:
                found.append((f"calibration.target.{name}", f"made for {_short(mine)}, this is {_short(theirs)}"))
        if verifier and self.verifier != verifier:
            found.append(("calibration.verifier", f"made for {self.verifier!r}, this is {verifier!r}"))
        low, high = self.temperatures
        if not low <= policy.temperature <= high:
            message = f"made for [{low}, {high}], this is {policy.temperature}"
            found.append(("calibration.temperatures", message))
        for name, theirs in sampler_of(policy).items():
            if self.sampler.get(name) != theirs:
                message = f"made for {self.sampler.get(name)}, this is {theirs}"
                found.append((f"calibration.sampler.{name}", message))
        return tuple(found)


def _short(value: str) -> str:
    return repr(value if len(value) < 64 else value[:16])


_FORCED = "+forced-calibration:"


def forced_of(source_version: str) -> str:
    """Hash of the calibration that a source of this version uses also where it does not hold; "" where there is none."""
    return source_version.partition(_FORCED)[2].partition("+")[0]


@dataclass(frozen=True)
class CalibrationUse:
    """A calibration as a source uses it. forced: also where it does not hold."""

    calibration: Calibration
    forced: bool = False

    @property
    def label(self) -> str:
        """What a source's version carries into the manifest: the hash, and whether it was forced."""
        return f"{'forced-' if self.forced else ''}calibration:{self.calibration.hash}"

    def check(self, target: TargetIdentity, policy: SamplingPolicy, verifier: str = "") -> None:
        """Raises FailedPrecondition naming the first field of a session that does not fit, unless forced."""
        if not self.forced:
            for name, message in self.calibration.mismatches(target, policy, verifier):
                raise FailedPrecondition(name, f"{message}; calibrate here, or force it")

    def check_drafting(self, drafting: str) -> None:
        """The same for what the source drafts with, as `Calibration.drafting` says it."""
        made = self.calibration
        if not self.forced and made.drafting != drafting:
            message = f"made for {made.drafting!r}, this is {drafting!r}"
            raise FailedPrecondition("calibration.drafting", f"{message}; calibrate here, or force it")

    def check_source(self, drafter: str, relation: str) -> None:
        """The same for the source that wants to use it, once, when it is built."""
        made = self.calibration
        if not self.forced and made.drafter != drafter:
            whose = _short(made.drafter) if made.drafter else "an unnamed drafter"
            message = f"made for {whose}, this is {_short(drafter)}"
            raise FailedPrecondition("calibration.drafter", f"{message}; calibrate here, or force it")
        if not self.forced and made.relation != relation:
            message = f"made for {made.relation!r}, this is {relation!r}"
            raise FailedPrecondition("calibration.relation", f"{message}; calibrate here, or force it")


def calibration_from_bytes(data: bytes) -> Calibration:
    """The strict reading of `Calibration.to_bytes`.

    Raises DataLoss where the bytes are not canonical or do not have their hash, InvalidArgument for an unknown format and
    for missing, unknown or impossible fields.
    """
    try:
        outer = json.loads(data)
        body = outer["calibration"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataLoss("calibration", "is no calibration file") from error
    plain = _plain(body)
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise InvalidArgument("calibration.format", f"is not {FORMAT!r}")
    known = {item.name for item in fields(Calibration)}
    if set(plain) != known:
        raise InvalidArgument("calibration", f"missing or unknown: {', '.join(sorted(set(plain) ^ known))}")
    try:
        target = TargetIdentity(**plain.pop("target"))
        tuples = {name: _tuples(value) for name, value in plain.items() if isinstance(value, list)}
        found = Calibration(target=target, **(plain | tuples))
    except (TypeError, ValueError) as error:
        raise InvalidArgument("calibration", f"has a field of the wrong kind: {error}") from error
    if outer.get("sha256") != found.hash or data != found.to_bytes():
        raise DataLoss("calibration.sha256", "the bytes are not those that were written")
    return found


def _plain(value: Any) -> Any:
    """Undoes the canonical form of floats."""
    if isinstance(value, dict):
        if set(value) == {"f64"} and isinstance(value["f64"], str):
            return float.fromhex(value["f64"])
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
