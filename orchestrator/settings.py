"""What an orchestrator needs to know beforehand. Parsed elsewhere; a plain frozen record here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class OrchestratorSettings:
    """Limits and patience of one orchestrator. Times in milliseconds, budgets in candidates (the anchor not counted).

    default_sources: used where a request names none; those that nobody serves are recorded as absent.
    default_index: the index of the source `retrieval` where a request names none; "" takes the only one served.
    max_suffix: longest suffix that an index is asked to match, as far as it allows it.
    retrieval_min_match: shortest suffix that an index is asked to match. retrieval_spec_factor: most candidates that it may
    offer per matched token; 0: no such limit.
    budget: of a request that does not say; "fixed" verifies all that is offered, "adaptive" what is likely to make tokens
    cheaper (orchestrator/budget).
    propose_deadline_ms: how long a round waits for sources whose lateness cannot change the law of the text.
    describe_ttl_ms: how long what a service says of itself is taken as it is. describe_stale_ms: how long after that it is
    still used, while it is asked for anew on the side.
    prepare_deadline_ms: how long the first round waits for sources to run over the prompt's hidden rows.
    law_deadline_ms: how long it waits under a verifier that walks laws; a source past it is dropped for the session.
    verify_timeout_ms: after it one Verify call counts as lost. verify_attempts: calls before a replica counts as gone.
    reopen_attempts: how often one request may move to another replica, and how often each move is tried.
    retry_delays_ms: waits between attempts; the last one repeats.
    """

    default_sources: tuple[str, ...] = ("prompt_lookup", "retrieval")
    default_index: str = ""
    default_node_budget: int = 24
    max_node_budget: int = 64
    default_max_depth: int = 12
    depth_limit: int = 64
    max_suffix: int = 64
    retrieval_min_match: int = 1
    retrieval_spec_factor: int = 0
    budget: Literal["fixed", "adaptive"] = "fixed"
    propose_deadline_ms: float = 50.0
    prepare_deadline_ms: float = 250.0
    law_deadline_ms: float = 10_000.0
    describe_ttl_ms: float = 1_000.0
    describe_stale_ms: float = 10_000.0
    describe_timeout_ms: float = 250.0
    open_timeout_ms: float = 120_000.0
    verify_timeout_ms: float = 30_000.0
    close_timeout_ms: float = 1_000.0
    record_timeout_ms: float = 2_000.0
    verify_attempts: int = 3
    reopen_attempts: int = 4
    retry_delays_ms: tuple[float, ...] = (10.0, 50.0, 250.0, 1_000.0)
    lease_ms: int = 60_000
