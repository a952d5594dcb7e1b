"""Rotary position embeddings: the inverse frequencies of each scaling variant and the table of angles.

Variants: default (Su et al. 2021, arXiv:2104.09864), linear, llama3, and YaRN (Peng et al. 2023, arXiv:2309.00071,
section 3), as Transformers computes them. Dynamic NTK and LongRoPE change the frequencies of rows already cached when
the sequence grows, which a KV cache cannot follow: both are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from contracts.errors import InvalidArgument


@dataclass(frozen=True)
class RopeSpec:
    """Variant, base and the variant's own parameters, checked when parsed."""

    kind: str
    theta: float
    head_dim: int
    params: Mapping[str, float] = field(default_factory=dict)

    def inverse_frequencies(self) -> Tensor:
        """float32 [head_dim / 2]."""
        plain = 1.0 / (self.theta ** (torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim))
        if self.kind == "linear":
            return plain / self.params["factor"]
        if self.kind == "llama3":
            return _llama3(plain, self.params)
        if self.kind == "yarn":
            return _yarn(plain, self.theta, self.head_dim, self.params)
        return plain

    @property
    def attention_factor(self) -> float:
        """What cosine and sine are multiplied by (YaRN's temperature; 1 elsewhere)."""
        return self.params.get("attention_factor", 1.0)

    def table(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of positions 0..length-1, float32 [length, head_dim / 2] each."""
        angles = torch.outer(torch.arange(length).float(), self.inverse_frequencies())
        return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor


def parse_rope(raw: Mapping[str, Any], head_dim: int, context_length: int) -> RopeSpec:
    """Read `rope_parameters`, or `rope_theta` with `rope_scaling`. Raises InvalidArgument for anything not covered."""
    scaling = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise InvalidArgument("config.rope_parameters", f"rope type {kind!r} is not supported")
    if scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise InvalidArgument("config.partial_rotary_factor", "partly rotated heads are not supported")
    theta = float(scaling.get("rope_theta", raw.get("rope_theta", 10000.0)))
    try:
        params = _parameters(kind, scaling, raw, context_length)
    except (KeyError, TypeError) as error:
        raise InvalidArgument("config.rope_parameters", f"{kind}: missing or malformed {error}") from error
    return RopeSpec(kind, theta, head_dim, params)


def _parameters(kind: str, scaling: Mapping[str, Any], raw: Mapping[str, Any], context_length: int) -> dict[str, float]:
    if kind == "default":
        return {}
    if kind == "linear":
        return {"factor": float(scaling["factor"])}
    original = float(
        scaling.get("original_max_position_embeddings") or raw.get("original_max_position_embeddings") or context_length
    )
    if kind == "llama3":
        return {
            "factor": float(scaling["factor"]),
            "low": float(scaling["low_freq_factor"]),
            "high": float(scaling["high_freq_factor"]),
            "original": original,
        }
    factor = float(scaling["factor"]) if scaling.get("factor") is not None else context_length / original
    return {
        "factor": factor,
        "original": original,
        "fast": float(scaling.get("beta_fast") or 32),
        "slow": float(scaling.get("beta_slow") or 1),
        "truncate": float(scaling.get("truncate", True)),
        "attention_factor": _yarn_temperature(scaling, factor),
    }


def _yarn_temperature(scaling: Mapping[str, Any], factor: float) -> float:
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return scale(float(mscale)) / scale(float(all_dim)) if mscale and all_dim else scale(1.0)


def _llama3(plain: Tensor, params: Mapping[str, float]) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended linearly in original / wavelength."""
    low, high, original, factor = params["low"], params["high"], params["original"], params["factor"]
    wavelength = 2 * math.pi / plain
    stretched = torch.where(wavelength > original / low, plain / factor, plain)
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * stretched / factor + smooth * stretched
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(between, blended, stretched)


def _yarn(plain: Tensor, theta: float, head_dim: int, params: Mapping[str, float]) -> Tensor:
    def dimension(rotations: float) -> float:
        return head_dim * math.log(params["original"] / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(params["fast"]), dimension(params["slow"])
    if params["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return plain / params["factor"] * ramp + plain * (1 - ramp)
