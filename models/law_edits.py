"""Per-node edits of raw logits: bias, penalties and bans, each by the node's own prefix.

Order, as in vLLM and (where it has the parameter) Transformers: logit bias, repetition penalty, frequency and presence
penalties, then bans (banned, not allowed, end tokens before min_tokens). Repetition looks at prompt and output, frequency
and presence at the output only; a node's output is what was published since the prompt and the path from the anchor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.sampling import SamplingPolicy

Ints = npt.NDArray[np.int64]


class LogitEdits:
    """One per session. The prefix may only grow from call to call; its statistics are kept.

    `never`: no node has any edit.
    """

    def __init__(self, policy: SamplingPolicy, *, vocab_size: int, prompt_len: int, eos_ids: Sequence[int]) -> None:
        self._policy = policy
        self._prompt_len = prompt_len
        self._penalised = (
            policy.repetition_penalty != 1.0 or policy.presence_penalty != 0.0 or policy.frequency_penalty != 0.0
        )
        self._bias_ids = np.array(sorted(policy.logit_bias), dtype=np.int64)
        self._bias = np.array([policy.logit_bias[token] for token in sorted(policy.logit_bias)], dtype=np.float32)
        self._banned = np.array(sorted(set(policy.banned_ids)), dtype=np.int64)
        self._allowed = np.array(sorted(set(policy.allowed_ids)), dtype=np.int64)
        self._ends = np.array(sorted(set(eos_ids) | set(policy.stop_ids)), dtype=np.int64)
        self._seen = np.zeros(vocab_size if self._penalised else 0, dtype=np.bool_)
        self._counts = np.zeros(vocab_size if self._penalised else 0, dtype=np.int64)
        self.never = not (
            self._penalised or policy.min_tokens or len(self._bias_ids) or len(self._banned) or len(self._allowed)
        )
        self._known = 0
        self._prefix_len = 0

    def advance(self, prefix: Ints) -> None:
        """Takes in the published tokens since the last call."""
        self._prefix_len = len(prefix)
        if self._penalised and len(prefix) > self._known:
            self._seen[prefix[self._known :]] = True
            np.add.at(self._counts, prefix[max(self._known, self._prompt_len) :], 1)
            self._known = len(prefix)

    def _too_short(self, depth: int) -> bool:
        return self._prefix_len - self._prompt_len + depth < self._policy.min_tokens

    def edits_at(self, depth: int) -> bool:
        """Whether a node at `depth` (0: the anchor) has any edit."""
        any_ban = len(self._banned) or len(self._allowed) or self._too_short(depth)
        return bool(self._penalised or len(self._bias_ids) or any_ban)

    def apply(self, logits: Tensor, path: Ints) -> Tensor:
        """A new float32 [V] on the logits' device for the node reached over `path` (its tokens from the anchor down)."""
        device = logits.device
        out = logits.clone()
        if len(self._bias_ids):
            out[torch.from_numpy(self._bias_ids).to(device)] += torch.from_numpy(self._bias).to(device)
        if self._penalised:
            self._penalise(out, path)
        if len(self._allowed):
            kept = torch.from_numpy(self._allowed).to(device)
            only = torch.full_like(out, -torch.inf)
            only[kept] = out[kept]
            out = only
        if len(self._banned):
            out[torch.from_numpy(self._banned).to(device)] = -torch.inf
        if self._too_short(len(path)) and len(self._ends):
            out[torch.from_numpy(self._ends).to(device)] = -torch.inf
        return out

    def _penalise(self, out: Tensor, path: Ints) -> None:
        policy = self._policy
        if policy.repetition_penalty != 1.0:
            ids = torch.from_numpy(np.union1d(np.flatnonzero(self._seen), path).astype(np.int64)).to(out.device)
            values = out[ids]
            out[ids] = torch.where(values > 0, values / policy.repetition_penalty, values * policy.repetition_penalty)
        if policy.presence_penalty != 0.0 or policy.frequency_penalty != 0.0:
            ids_host = np.union1d(np.flatnonzero(self._counts), path).astype(np.int64)
            counts = self._counts[ids_host]
            np.add.at(counts, np.searchsorted(ids_host, path), 1)
            penalty = policy.frequency_penalty * counts + policy.presence_penalty
            out[torch.from_numpy(ids_host).to(out.device)] -= torch.from_numpy(penalty.astype(np.float32)).to(
                out.device
            )
