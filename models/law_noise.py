"""Gumbel noise on the device: the SplitMix64 stream of contracts.randomness in torch int64, and an exact pruned argmax.

`gumbel_argmax` returns what an argmax over all perturbed scores would, without taking two logarithms per token: the
likeliest few are perturbed first, and their best score bounds from below the noise that any other token would need. That
bound is an integer threshold on the raw bits, which a handful of tokens pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.randomness import GOLDEN, gumbel

HEAD = 64


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


def _best(noisy: npt.NDArray[np.float64], ids: npt.NDArray[np.int64]) -> tuple[float, int]:
    best = float(noisy.max())
    return best, int(ids[noisy == best].min())


def gumbel_argmax(
    scores: Tensor, key: int, to_log: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
) -> int:
    """argmax over tokens of to_log(scores) + noise of `key`; ties to the lowest id.

    scores: float [V] on any device, without NaN or +inf. to_log: increasing map of float64 scores to log weights, applied
    on the host to a few tokens only; it gives -inf for tokens that cannot be chosen. Only small vectors leave the device.
    """
    vocab = scores.shape[0]
    head = torch.topk(scores, min(HEAD, vocab))
    ids = head.indices.cpu().numpy()
    logs = to_log(head.values.double().cpu().numpy())
    best, token = _best(logs + gumbel(key, ids), ids)
    if len(ids) == vocab or logs[-1] == -np.inf:
        return token
    # A token outside the head has log weight <= logs[-1], so it needs noise >= best - logs[-1], that is a uniform >= floor.
    floor = np.exp(-np.exp(-(best - logs[-1])))
    threshold = max(int(floor * (1 - 1e-12) * 2.0**52) - 2, 0)
    bits = bits64_torch(key, vocab, scores.device)
    bits = (bits >> 12).bitwise_and_((1 << 52) - 1)
    hopeful = (bits >= threshold).nonzero().squeeze(1)
    rest_ids = hopeful.cpu().numpy()
    rest_logs = to_log(scores[hopeful].double().cpu().numpy())
    if len(rest_ids):
        rest, rest_token = _best(rest_logs + gumbel(key, rest_ids), rest_ids)
        if rest > best or (rest == best and rest_token < token):
            return rest_token
    return token


def gumbel_top(
    scores: Tensor, key: int, count: int, to_log: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
) -> npt.NDArray[np.int64]:
    """The `count` tokens with the largest perturbed log weights, best first (Gumbel top-k): int64, fewer if the support is.

    Kool, van Hoof and Welling, "Stochastic beams and where to find them", ICML 2019: a sample without replacement.
    """
    logs = to_log(scores.double().cpu().numpy())
    ids = np.flatnonzero(logs > -np.inf)
    noisy = logs[ids] + gumbel(key, ids)
    return ids[np.lexsort((ids, -noisy))[:count]].astype(np.int64)
