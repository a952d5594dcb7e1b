"""The one place where node counts change convention.

Ours count candidates, without the anchor. Sequoia's n, EAGLE-2's total and the measured t(n) count the root, which is our
anchor, because it is a row of the pass. Depths count edges below it everywhere.
"""

from __future__ import annotations


def with_root(candidates: int) -> int:
    """Rows of the pass that verifies `candidates` candidates: they and the anchor."""
    return candidates + 1


def without_root(nodes: int) -> int:
    """Candidates of a tree whose count of `nodes` includes the root."""
    return nodes - 1
