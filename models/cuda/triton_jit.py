"""Triton's compiler behind one typed decorator. Imports triton, which CUDA builds of torch bring along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def kernel(*, varying: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Any]:
    """Compile for launches `function[grid](...)`. varying: integers that are compiled in no case, so that one kernel serves
    all their values; Triton compiles others anew where they are 1 or divisible by 16.
    """
    decorate: Callable[[Callable[..., None]], Any] = triton.jit(do_not_specialize=list(varying))
    return decorate
