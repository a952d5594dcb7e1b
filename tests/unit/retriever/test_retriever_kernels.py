"""Compilation: cached code is bound to all kernel sources, and a read-only installation still works."""

from __future__ import annotations

import numpy as np
import pytest

from retriever import kernel_match, kernel_query, kernel_table, kernel_trie


def test_the_cache_of_every_kernel_is_stamped_with_the_sources_of_all() -> None:
    kernels = (kernel_match.longest_match, kernel_match.intervals, kernel_trie.best_first, kernel_table.code_of)
    kernels += (kernel_query.continuations,)
    assert {kernel._cache._cache_file._source_stamp for kernel in kernels} == {kernel_table.KERNEL_SOURCES}


def test_kernels_release_the_gil() -> None:
    assert kernel_trie.best_first.targetoptions["nogil"]
    assert kernel_query.continuations.targetoptions["nogil"]


def test_without_a_writable_cache_kernels_are_compiled_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernel_table.njit

    def njit(**options: object) -> object:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(kernel_table, "njit", njit)
    double = kernel_table.compiled(lambda x: x * 2)
    assert double(np.int64(4)) == 8
