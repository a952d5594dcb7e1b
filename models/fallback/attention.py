"""What Transformers' own modules see of a tree pass: a registered attention whose masks come from rows, not from offsets.

A model asks for its masks by a rule of query and key positions (causal, sliding, chunked). Rows of a tree do not stand in
the order of their positions, so the rule is evaluated at the positions that the rows have, and a row sees what the rule
and its ancestry both allow. The attention itself is the model's own eager one. Outside of a pass both functions are
Transformers' eager ones, so the same model also computes its own plain forward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from contracts.errors import Internal, InvalidArgument

ATTENTION = "draftproof-tree"
_EAGER = "eager_attention_forward"


@dataclass(frozen=True)
class TreePass:
    """The rows of one block. N rows over K cached and own rows.

    query_positions int64 [N], key_positions int64 [K]; visible bool [N, K]: committed rows, ancestors and the row itself.
    """

    query_positions: Tensor
    key_positions: Tensor
    visible: Tensor


_current: ContextVar[TreePass | None] = ContextVar("tree_pass", default=None)


@contextmanager
def running(tree_pass: TreePass) -> Iterator[None]:
    """The pass that a model's masks and attention are of, within the block."""
    token = _current.set(tree_pass)
    try:
        yield
    finally:
        _current.reset(token)


def tree_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    mask_function: Callable[..., Tensor],
    dtype: torch.dtype = torch.float32,
    use_vmap: bool = False,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Additive [1, 1, N, K] in `dtype`: 0 where a row sees, the type's least number elsewhere.

    Raises InvalidArgument for a rule of more than positions, which a tree cannot answer.
    """
    current = _current.get()
    if current is None:
        options |= {"dtype": dtype, "use_vmap": use_vmap, "attention_mask": attention_mask}
        return eager_mask(batch_size, q_length, kv_length, mask_function=mask_function, **options)
    rows, keys = current.visible.shape
    if use_vmap or (attention_mask is not None and not attention_mask.all()):
        raise InvalidArgument("config.model_type", "its attention mask depends on more than positions")
    if (batch_size, q_length, kv_length) != (1, rows, keys):
        raise InvalidArgument(
            "config.model_type", f"it masks {q_length} rows over {kv_length}, the pass has {rows} over {keys}"
        )
    first = current.query_positions.new_zeros(())
    allowed = mask_function(first, first, current.query_positions[:, None], current.key_positions[None, :])
    hidden = ~(allowed & current.visible)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)[None, None]


def tree_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Any:
    """The eager attention of the module's own file. Raises InvalidArgument where the pass's mask did not reach it."""
    current = _current.get()
    if current is not None:
        expected = tuple(current.visible.shape)
        got = None if attention_mask is None else tuple(attention_mask.shape[-2:])
        if got != expected or key.shape[-2] != expected[1]:
            raise InvalidArgument(
                "config.model_type",
                f"{type(module).__name__} attends {query.shape[-2]} rows over {key.shape[-2]} under a mask {got}, "
                f"not {expected}",
            )
    return _eager_of(type(module))(module, query, key, value, attention_mask, **options)


def _eager_of(kind: type) -> Callable[..., Any]:
    for base in kind.__mro__:
        found = getattr(sys.modules[base.__module__], _EAGER, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise Internal("config.model_type", f"{kind.__name__} calls the attention interface and has no eager attention")


AttentionInterface.register(ATTENTION, tree_attention)
AttentionMaskInterface.register(ATTENTION, tree_mask)
