"""The check at load: a branching tree must say what the model's own forward says of each of its paths alone.

Which of Transformers' models mask by position, read the positions given and keep nothing but keys and values is not
written on them. One that does not would still generate, and say something else. So every model is tried first.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from contracts.errors import InvalidArgument
from models.backend import Backend, Int64Array, KVSlot, RowBlock
from models.fallback.model import CausalModel
from models.passes import depths

_PREFIX, _BRANCH, _DEPTH = 5, 2, 3
ROWS = _PREFIX + sum(_BRANCH**level for level in range(1, _DEPTH + 1)) + 1

# Of a row's logits, centred: the root mean square of the difference over that of the logits. fp32 stays below 1e-5. Siblings
# seen or positions by row give the median row of the tree 0.2 to 1.1 over 14 tiny families, in either type. In bf16 a tie
# of a router may turn single rows over, so there that median is judged, in fp32 the worst row.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05}


def check_tree(backend: Backend, model: CausalModel) -> None:
    """Raises InvalidArgument naming the family where tree rows, staged over two passes, or a row after the commit of a
    path differ from Transformers' own forward over each path alone. Needs `ROWS` rows of the budget; all are given back.
    """
    rng = np.random.default_rng(0)
    prefix, tokens, ending = np.split(rng.integers(0, backend.info.vocab_size, ROWS), [_PREFIX, ROWS - 1])
    parents = np.repeat(np.arange(-1, len(tokens) // _BRANCH - 1), _BRANCH)
    first = len(tokens) - _BRANCH**_DEPTH
    paths = [_path(parents, row) for row in range(first, len(parents))]
    kept = paths[len(paths) // 2]
    slot = backend.allocate(ROWS)
    try:
        rows = [_stage(backend, slot, prefix, np.arange(-1, _PREFIX - 1), 0)]
        backend.commit(slot, range(_PREFIX))
        rows += [_stage(backend, slot, tokens, parents, start, stop) for start, stop in ((0, first), (first, None))]
        backend.commit(slot, kept)
        after = _stage(backend, slot, ending, np.array([-1]), 0)
    finally:
        backend.release(slot)
    index = np.array([[*range(_PREFIX), *(_PREFIX + row for row in path)] for path in paths])
    whole = np.stack([np.concatenate([prefix, tokens[path]]) for path in paths])
    errors = _errors(torch.cat(rows)[torch.from_numpy(index)], _plain(model, whole))
    grown = errors[:, _PREFIX:]
    end = _plain(model, np.concatenate([prefix, tokens[kept], ending])[None])[0, -1:]
    errors = torch.cat([errors.flatten(), _errors(after, end)])
    judged = float(errors.max() if model.dtype == torch.float32 else grown.median())
    tolerance = _TOLERANCE[model.dtype]
    # Not "larger than": NaN is refused too.
    if not judged <= tolerance:
        raise InvalidArgument(
            "config.model_type",
            f"{backend.info.family!r} does not run here: its rows of a tree differ from its own forward over each path "
            f"alone by {judged:.2g} of the logits' spread, the limit is {tolerance:g}",
        )


def _stage(
    backend: Backend, slot: KVSlot, tokens: Int64Array, parents: Int64Array, start: int, stop: int | None = None
) -> Tensor:
    """Rows [start, stop) of a tree, those before being staged already; their logits on the host."""
    positions = slot.length + np.array(depths(parents.tolist()), np.int64)
    block = RowBlock(slot, tokens[start:stop], positions[start:stop], parents[start:stop])
    return backend.forward([block]).logits[0].cpu()


def _path(parents: Int64Array, row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = int(parents[row])
    return path[::-1]


@torch.inference_mode()
def _plain(model: CausalModel, tokens: Int64Array) -> Tensor:
    return model.plain(torch.from_numpy(tokens).to(model.device)).cpu()


def _errors(got: Tensor, expected: Tensor) -> Tensor:
    """Per row of [..., V], in units of the logits' spread."""
    spread = (expected - expected.mean(-1, keepdim=True)).square().mean(-1).sqrt()
    return (got - expected).square().mean(-1).sqrt() / spread
