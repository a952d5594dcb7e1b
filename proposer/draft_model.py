"""A separate draft model as a source (Leviathan et al., ICML 2023; Chen et al., 2023; trees as in SpecInfer).

What an offer *is* must be declared before any request is known, so the relation is a setting and part of the version:

    relation             semantics               children of a node                        consumed by
    independent          normalized_conditional  draws from the draft's law                rejection, block, SpecTr ...
    without_replacement  normalized_conditional  draws from it, each without the earlier   Sequoia, traversal
    shared_noise         score_only              its tokens best under the target's noise  Gumbel coupling
    beam                 score_only              its likeliest tokens                      verifiers that need no q

Greedy and membership verification, which need no q, consume all four at every temperature. Laws are the draft's under the
request's own sampling parameters, cut to `support` tokens; at temperature 0 that law is the point mass on the argmax, so a
chain of draws is the greedy chain and q is honestly 1. `beam` ranks by the edited but untempered and untruncated law: more
of its tokens meet the target's sample under membership, but they are no sample of anything, so there is no q. Scores are
path log-probabilities.

The tree is a plan (proposer/topology/plan.py), or EAGLE-2's growth by value where the relation is beam. A plan made from a
calibration is refused, round by round, to sessions that the calibration does not hold for, unless it was forced.

Penalties are computed as if the prefix at the session's first round here were the prompt. Where it was not (a restarted
service), the drafts are a little worse; q is the law they were drawn from all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import pad

from contracts.ports import ProposeRequest
from contracts.sampling import SamplingPolicy
from models.backend import Backend
from models.laws import LawProcessor, TargetLaws
from proposer.draft_cache import DraftCache
from proposer.draft_tree import Int64Array, Process
from proposer.tree_source import RESERVED_TOKENS, Drafting, TreeSettings, TreeSource


@dataclass(frozen=True)
class DraftModelSettings(TreeSettings):
    """As TreeSettings; independent draws by default."""

    FIELD: ClassVar[str] = "draft_model"


class DraftModel(TreeSource[DraftCache]):
    """The source `draft_model`: one backend of its own, one KV slot a session, allocated at the session's first round.

    tokenizer_digest: of the draft's tokenizer; admission compares it with the target's. eos_ids: banned in drafts as long
    as the request's min_tokens ban them in the target. A prefix longer than the draft's context gets an empty offer.
    """

    # What a way of drafting adds to the source's version.
    HOW: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        backend: Backend,
        settings: DraftModelSettings | None = None,
        *,
        name: str = "draft_model",
        tokenizer_digest: str = "",
        eos_ids: Sequence[int] = (),
    ) -> None:
        info = backend.info
        super().__init__(
            settings or DraftModelSettings(),
            name=name,
            family="draft_model",
            version={"checkpoint": info.checkpoint_digest, "dtype": info.dtype, **self.HOW},
            drafter=info.checkpoint_digest,
            tokenizer_digest=tokenizer_digest,
        )
        self._backend = backend
        self._eos_ids = tuple(eos_ids)

    def reach(self, prefix_len: int) -> int:
        # A node is offered one position beyond the last row run, hence one more than the context still holds.
        return self._backend.info.context_length - prefix_len + 1

    def process_of(self, session: Drafting[DraftCache], request: ProposeRequest, policy: SamplingPolicy) -> Process:
        vocab_size = session.manifest.target.vocab_size
        processor = LawProcessor(policy, vocab_size=vocab_size, prompt_len=session.prompt_len, eos_ids=self._eos_ids)

        def process(logits: Tensor, token_ids: Int64Array, parents: Int64Array) -> TargetLaws:
            fitted = _fit(logits, vocab_size)
            return processor.laws(fitted, prefix=request.prefix, token_ids=token_ids, parents=parents)

        return process

    def drafter_of(self, session: Drafting[DraftCache], request: ProposeRequest, staged: int) -> DraftCache:
        """The session's cache, with room for this round's rows and for rounds to come."""
        prefix_len = len(request.prefix)
        cache = session.state_for(prefix_len + staged)
        if cache is not None:
            return cache
        ahead = min(request.policy.max_tokens, RESERVED_TOKENS)
        capacity = min(prefix_len + ahead, self._backend.info.context_length) + staged
        return session.take(DraftCache(self._backend, capacity), capacity)


def _fit(logits: Tensor, vocab_size: int) -> Tensor:
    """float32 [N, vocab_size]: checkpoints of one tokenizer pad their vocabularies differently."""
    missing = vocab_size - logits.shape[1]
    return pad(logits, (0, missing), value=float("-inf")) if missing > 0 else logits[:, :vocab_size]
