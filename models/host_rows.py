"""What a pass computed on the host, as arrays, and as tensors for those who ask for these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]


class HostRows(Sequence[Tensor]):
    """arrays: of each block. A tensor over one is made when it is asked for: what torch does first after a pass costs many
    times what it costs in a loop."""

    def __init__(self, arrays: Sequence[Floats]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...

    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(index, slice):
            return HostRows(self.arrays[index])
        return torch.from_numpy(self.arrays[index])


def rows_at(blocks: Sequence[Tensor], index: int) -> Tensor | Floats:
    """One block's rows as they are: an array where the pass gave arrays."""
    return blocks.arrays[index] if isinstance(blocks, HostRows) else blocks[index]
