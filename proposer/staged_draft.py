"""Staged speculation: a drafter for the drafter (Spector and Re, 2023, arXiv 2308.04623).

A draft model's chain costs it a pass a token. Here prompt lookup guesses how the draft goes on, the draft model runs guesses
and all in one pass and chooses behind each row as it would have anyway; what it chose is kept for as long as the guesses say
the same, and its own choice ends the pass. A choice is a function of the law at its row and of the coin of its number, and
guesses touch neither: so the offer is the plain draft model's, token for token and law for law, for every relation, and so
is what may consume it. Only passes are saved.

Bit for bit this holds where the backend's rows do not depend on the rows beside them; elsewhere a draft may differ by
rounding, and its law is still the one it was drawn from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from contracts.errors import InvalidArgument
from contracts.ports import ProposeRequest
from contracts.topology import ANCHOR, Topology
from models.backend import Backend
from proposer.draft_cache import DraftCache
from proposer.draft_model import DraftModel, DraftModelSettings
from proposer.draft_tree import DraftTree
from proposer.prompt_lookup import PromptLookupSettings, continuation_of
from proposer.topology.plan import GrownByValue, TreePlan
from proposer.tree_source import Drafting

# What guesses are copied by: in proportion to the match, since a wrong guess costs a row of a draft pass.
GUESSES = PromptLookupSettings(rule="one_edit", max_ngram=16, spec_factor=2)


class StagedDraft(DraftModel):
    """A draft model that drafts chains with the help of prompt lookup over the prefix and what was drafted.

    guesses: how it looks up. Other arguments as DraftModel. Raises InvalidArgument for a tree that is no chain: siblings
    share a pass already.
    """

    HOW: ClassVar[Mapping[str, str]] = {"staged": "prompt_lookup"}

    def __init__(
        self,
        backend: Backend,
        settings: DraftModelSettings | None = None,
        *,
        name: str = "draft_model",
        tokenizer_digest: str = "",
        eos_ids: Sequence[int] = (),
        guesses: PromptLookupSettings = GUESSES,
    ) -> None:
        settings = settings or DraftModelSettings()
        tree = settings.tree
        if isinstance(tree, GrownByValue) or tree.topology is not Topology.SEQUENCE:
            raise InvalidArgument("draft_model.tree", "staged drafting is for chains")
        super().__init__(backend, settings, name=name, tokenizer_digest=tokenizer_digest, eos_ids=eos_ids)
        self._chain: TreePlan = tree
        self._guesses = guesses

    def draft(self, session: Drafting[DraftCache], request: ProposeRequest, budget: int, depth: int) -> DraftTree:
        """The chain that the plain draft model drafts."""
        wanted = len(self._chain.shape(budget, depth))
        if not wanted:
            return DraftTree()
        choose, process = self.chosen_by(session, request)
        # Twice the rows of a chain: guesses that miss stay staged until the round ends.
        room = 2 * self._tree_settings.max_nodes
        cache = self.drafter_of(session, request, room)
        tree = DraftTree()
        # Logits of the anchor's row and of the chain's rows that were run, and those rows' numbers in the cache.
        logits = cache.follow(request.prefix)[None]
        path: list[int] = []
        staged = 0
        guessed: list[int] = []
        while True:
            run = [*tree.tokens[len(path) :], *guessed]
            if run:
                above = path[-1] if path else ANCHOR
                parents = [above, *range(staged, staged + len(run) - 1)]
                depths = range(len(path) + 1, len(path) + len(run) + 1)
                logits = torch.cat([logits, cache.stage(run, parents, [*depths])])
            chain = np.array([*tree.tokens, *guessed], dtype=np.int64)
            laws = process(logits, chain, np.arange(len(chain), dtype=np.int64) - 1)
            for row in range(len(tree.tokens) - 1, len(chain)):
                siblings = choose(laws, row, depth=row + 2, count=1, first_draw=row + 1)
                tree.add(siblings, row, row + 2)
                if len(tree.tokens) == wanted or row + 1 == len(chain) or tree.tokens[-1] != chain[row + 1]:
                    break
            # All that was chosen has been run but the last of them.
            kept = len(tree.tokens) - 1
            path = [*path, *range(staged, staged + kept - len(path))]
            staged, logits = staged + len(run), logits[: kept + 1]
            if len(tree.tokens) == wanted:
                break
            left = wanted - len(tree.tokens)
            text = np.concatenate([request.prefix, np.array(tree.tokens, dtype=np.int64)])
            guessed = continuation_of(text, self._guesses, min(left - 1, room - staged - left))
        cache.settle(path)
        return tree
