"""Gumbel noise on the device: the SplitMix64 stream of contracts.randomness in torch int64, and an exact pruned Gumbel-max.

`gumbel_top` returns what sorting all perturbed scores would, without taking two logarithms per token: the likeliest few
are perturbed first, and their scores bound from below the noise that any other token would need. That bound is an integer
threshold on the raw bits, which a handful of tokens pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.randomness import GOLDEN, gumbel

HEAD = 64
LARGEST_HEAD = 2048
MARGIN = 6.0


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_MUL1, _MUL2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


@lru_cache(maxsize=8)
def _steps(count: int, device: torch.device) -> Tensor:
    return torch.arange(1, count + 1, dtype=torch.int64, device=device) * _signed(GOLDEN)


def bits64_torch(key: int, count: int, device: torch.device) -> Tensor:
    """Elements 0..count-1 of the key's stream as int64 [count] on `device`: the bit patterns of `randomness.bits64`."""
    x = _steps(count, device) + _signed(key)
    # torch shifts int64 arithmetically; the masks make the shifts logical.
    x.bitwise_xor_((x >> 30).bitwise_and_((1 << 34) - 1)).mul_(_MUL1)
    x.bitwise_xor_((x >> 27).bitwise_and_((1 << 37) - 1)).mul_(_MUL2)
    return x.bitwise_xor_((x >> 31).bitwise_and_((1 << 33) - 1))


class _Scratch(threading.local):
    """Per-thread numpy buffers: at a vocabulary's size every fresh temporary costs page faults."""

    def __init__(self) -> None:
        self.steps = np.zeros(0, dtype=np.uint64)
        self.bits = np.zeros(0, dtype=np.uint64)
        self.spare = np.zeros(0, dtype=np.uint64)

    def fit(self, count: int) -> None:
        if len(self.steps) != count:
            self.steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
            self.bits, self.spare = np.empty_like(self.steps), np.empty_like(self.steps)


_scratch = _Scratch()


def _at_least(key: int, count: int, threshold: int, device: torch.device) -> npt.NDArray[np.int64]:
    """Indices below `count` whose 52 random bits are at least `threshold`."""
    if device.type != "cpu":
        bits = (bits64_torch(key, count, device) >> 12).bitwise_and_((1 << 52) - 1)
        return np.asarray((bits >= threshold).nonzero().squeeze(1).cpu().numpy())
    _scratch.fit(count)
    bits_host, spare = _scratch.bits, _scratch.spare
    np.add(_scratch.steps, np.uint64(key), out=bits_host)
    for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.right_shift(bits_host, np.uint64(shift), out=spare)
        np.bitwise_xor(bits_host, spare, out=bits_host)
        if multiplier != 1:
            np.multiply(bits_host, np.uint64(multiplier), out=bits_host)
    return np.flatnonzero(bits_host >= np.uint64(threshold << 12))


def _head(
    scores: Tensor, count: int, margin: Callable[[float], float]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], float]:
    """ids and scores of the likeliest few, at least `count` where there are, and an upper bound of all other scores."""
    floor = margin(float(scores.amax()))
    near = scores >= floor
    on_host = scores.device.type == "cpu"
    ids = np.flatnonzero(near.numpy()) if on_host else near.nonzero().squeeze(1).cpu().numpy()
    if count <= len(ids) <= LARGEST_HEAD:
        chosen = scores.numpy()[ids] if on_host else scores[near].cpu().numpy()
        return ids, chosen.astype(np.float64), floor
    head = torch.topk(scores, min(max(HEAD, count), scores.shape[0]))
    values = head.values.double().cpu().numpy()
    return head.indices.cpu().numpy(), values, float(values[-1])


def gumbel_top(
    scores: Tensor,
    key: int,
    count: int,
    to_log: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
    margin: Callable[[float], float],
) -> npt.NDArray[np.int64]:
    """The `count` tokens with the largest to_log(scores) + noise of `key`, best first, ties to the lower id: int64.

    One token is a sample (Gumbel-max), several are a sample without replacement (Kool, van Hoof and Welling, "Stochastic
    beams and where to find them", ICML 2019). Fewer come back where fewer can be chosen.

    scores: float [V] on any device, without NaN or +inf. to_log: increasing map of float64 scores to log weights, applied
    on the host to a few tokens only; it gives -inf for tokens that cannot be chosen. margin: from the largest score to the
    one MARGIN nats of log weight below it. Only small vectors leave the device.
    """
    vocab = scores.shape[0]
    ids, values, rest = _head(scores, count, margin)
    noisy = to_log(values) + gumbel(key, ids)
    bound = float(to_log(np.array([rest]))[0])
    if len(ids) < vocab and bound > -np.inf:
        # A token outside the head has log weight <= bound; to enter, its noise must lift it to the head's count-th best.
        needed = np.partition(noisy, len(noisy) - count)[len(noisy) - count] - bound
        threshold = max(int(np.exp(-np.exp(-needed)) * (1 - 1e-12) * 2.0**52) - 2, 0)
        hopeful = _at_least(key, vocab, threshold, scores.device)
        # The head's own tokens are already in. (A set: np.isin costs more than all the rest here.)
        known = set(ids.tolist())
        hopeful = np.array([token for token in hopeful.tolist() if token not in known], dtype=np.int64)
        more = to_log(scores[torch.from_numpy(hopeful).to(scores.device)].double().cpu().numpy())
        ids, noisy = np.concatenate([ids, hopeful]), np.concatenate([noisy, more + gumbel(key, hopeful)])
    order = np.lexsort((ids, -noisy))[:count]
    return ids[order[noisy[order] > -np.inf]]
