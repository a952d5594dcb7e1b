"""One Settings a process, read once from DRAFTPROOF_* variables. A key that nobody knows stops start-up.

The classes share one name space, so that one environment serves `draftproof up`, which starts them all.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from contracts.errors import InvalidArgument
from services import setting_rules as rules
from services.setting_bases import DEFAULT_MODEL as DEFAULT_MODEL
from services.setting_bases import ModelSettings as ModelSettings
from services.setting_bases import ProcessSettings
from services.setting_rules import PREFIX as PREFIX
from services.setting_rules import names_in as names_in

# What a verifier admits as a lease, and longer than any call should take.
MAX_MS = 3_600_000
# Read by scripts/bootstrap.py, tests and benchmarks, not by any service.
SET_UP_VARIABLES = frozenset(
    {
        "DRAFTPROOF_TORCH_INDEX",
        "DRAFTPROOF_ALLOW_CUDA_TORCH",
        "DRAFTPROOF_PROMPTS",
        "DRAFTPROOF_GOLDENS",
        "DRAFTPROOF_MODEL_WHEEL",
    }
)


class VerifierSettings(ModelSettings):
    """The verifier service: front process and engine process."""

    verifier_port: int = Field(7602, ge=0, le=65535, description="port of the verifier service; 0: any free one")
    dtype: Literal["float32", "bfloat16", "int8", "int4", "auto"] = Field(
        "bfloat16",
        description="type of the target's weights; int8 and int4 are GGUF's Q8_0 and Q4_1, on a CPU only, and lose nothing "
        "of a checkpoint that was converted from such a file; auto: they where that is so, else bfloat16",
    )
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="where the target runs: cpu, cuda, cuda:1")
    backend: Literal["", "cpu-llvm", "cpu-torch", "cuda-graph", "cuda-torch", "transformers"] = Field(
        "",
        description="implementation of the target's pass; empty: the fastest that runs here, which for families without a "
        "decoder of ours is transformers, the slower fallback",
    )
    fixed_rows: int = Field(
        0,
        ge=0,
        le=256,
        description="strict mode of cuda-graph: every pass runs as passes of so many rows (a power of two), so that a row's "
        "bits do not depend on its neighbours; 0: off",
    )
    threads: int = Field(0, ge=0, description="threads of a pass; 0: one per core")
    kv_tokens: int = Field(16_384, ge=64, description="tokens of KV that all sessions share")
    prefix_sharing: bool = Field(
        True, description="whether sessions of one tenant and salt share the KV of a common prompt start"
    )
    prefix_cache_tokens: int = Field(
        8_192,
        ge=0,
        description="tokens of that KV that ended sessions leave for later prompts, until the room is needed; 0: none",
    )
    max_rows: int = Field(128, ge=1, le=512, description="candidates a round may have")
    max_queue: int = Field(256, ge=1, description="calls that may wait for a pass")
    max_pass_rows: int = Field(512, ge=1, description="rows of a pass over several sessions")
    prefill_slowdown: float = Field(
        4.0,
        gt=1,
        description="how many times as long a pass of rounds may take for the rows of a prompt that fills meanwhile",
    )
    prefill_chunk: int = Field(
        64, ge=1, description="prompt rows a single pass may take; where 64 fill the cores, more only leave the caches"
    )

    def check(self) -> None:
        """The backend runs on the device and knows the type of the weights."""
        super().check()
        rules.backend(self.backend, self.device, self.dtype)


class LookupSettings(ModelSettings):
    """Prompt lookup, wherever it is hosted."""

    lookup_rule: Literal["latest", "earliest", "one_edit"] = Field(
        "one_edit",
        description="which occurrence prompt lookup copies from: the latest or earliest of the longest match, or (one_edit) "
        "the one before which the text matches again once an edit is forgiven",
    )
    lookup_continuation: Literal["clipped", "full_length"] = Field(
        "clipped", description="whether a continuation may be shorter than asked for"
    )
    lookup_min_ngram: int = Field(1, ge=1, le=64, description="shortest n-gram that prompt lookup matches")
    lookup_max_ngram: int = Field(16, ge=1, le=64, description="longest n-gram that prompt lookup matches")
    lookup_spec_factor: int = Field(
        2, ge=0, le=64, description="most tokens that prompt lookup copies per matched token; 0: no such limit"
    )
    lookup_branches: int = Field(1, ge=1, le=16, description="continuations that prompt lookup offers")

    def check(self) -> None:
        """The shortest n-gram is not longer than the longest."""
        super().check()
        rules.at_most("lookup_min_ngram", self.lookup_min_ngram, "lookup_max_ngram", self.lookup_max_ngram)


class ProposerSettings(LookupSettings):
    """The proposer service."""

    proposer_port: int = Field(7603, ge=0, le=65535, description="port of the proposer service; 0: any free one")
    draft_model: str = Field(
        "",
        description="draft models, named as `model` is, separated by commas: the sources draft_model, draft_model_2, ...; "
        "empty: none",
    )
    draft_staged: Literal["", "prompt_lookup"] = Field(
        "",
        description="prompt_lookup: draft models check what lookup finds instead of drafting token by token (chains "
        "only): the same drafts in fewer passes",
    )
    draft_dtype: Literal["float32", "bfloat16", "int8", "int4"] = Field(
        "bfloat16", description="type of the draft models' weights"
    )
    draft_threads: int = Field(0, ge=0, description="threads of a draft pass, a head's too; 0: one per core")
    draft_kv_tokens: int = Field(
        16_384, ge=64, description="tokens of KV that a draft model's sessions share, and those of the head"
    )
    draft_relation: Literal["independent", "without_replacement", "shared_noise", "beam"] = Field(
        "independent", description="how the draft model's candidates come about, and so which verifiers take them"
    )
    draft_tree: str = Field(
        "1",
        description="tree of the draft model: widths by depth (4,2,1), by_value:KxD, comb:KxD, or a calibration's path, "
        "medusa:PATH for Medusa's sparse tree by it, forced:PATH or medusa:forced:PATH where it does not hold; of several, "
        "one for all or one each, separated by semicolons",
    )
    head: str = Field(
        "",
        description="a draft head for the target `model`: directory of a package, or the name of a model that one is "
        "shipped for; served as the source `head`; empty: none",
    )
    head_tree: str = Field("by_value:3x4", description="tree of the head, named as `draft_tree` is")
    head_relation: Literal["independent", "without_replacement", "shared_noise", "beam"] = Field(
        "beam", description="how the head's candidates come about; a tree by value needs beam"
    )
    head_nodes: int = Field(16, ge=1, le=512, description="most candidates that the head offers")
    head_prompt_rows: int = Field(
        32,
        ge=0,
        description="rows of the prompt's end that the head is run over before it drafts; 0: all of the prompt's",
    )
    head_dtype: Literal["float32", "bfloat16", "int8"] = Field(
        "int8",
        description="type of the head's weights while it drafts; bfloat16 for int8 where sizes are no multiples of 32",
    )
    head_rows_mb: int = Field(
        256,
        ge=1,
        description="megabytes of the target's hidden rows that sessions hold; the least recently fed lose theirs",
    )

    def check(self) -> None:
        """Trees can be read; that of a drafter which is set fits its relation."""
        super().check()
        for drafter, name in ((self.draft_model, "draft"), (self.head, "head")):
            for tree in str(getattr(self, f"{name}_tree")).split(";"):
                rules.tree(f"{name}_tree", tree.strip())
                if drafter:
                    relation = str(getattr(self, f"{name}_relation"))
                    rules.relation_of_tree(f"{name}_relation", relation, f"{name}_tree", tree.strip())


class RetrieverSettings(ModelSettings):
    """The retriever service."""

    retriever_port: int = Field(7604, ge=0, le=65535, description="port of the retriever service; 0: any free one")
    redis_url: str = Field(
        "",
        description="redis://, rediss:// or unix:// address of the release store; empty: an embedded one (`up` only)",
    )
    redis_port: int = Field(7605, ge=0, le=65535, description="port of the embedded Redis of `up`; 0: any free one")
    redis_namespace: str = Field("draftproof", description="prefix of every key")
    indexes: str = Field("", description="names of the indexes to serve, separated by commas; empty: all")
    keep_releases: int = Field(3, ge=1, description="releases of an index that stay askable after a swap")
    segment_memory: Literal["mapped", "copied"] = Field(
        "copied",
        description="copied: segments lie in huge pages of the process; mapped: shared with other processes, slower",
    )
    retriever_groups: str = Field(
        "", description="names of the groups that share the releases' segments, separated by commas; empty: no groups"
    )
    retriever_group: str = Field("", description="which of the groups this retriever is")
    live_policies: str = Field(
        "",
        description='indexes that learn from published outputs, as JSON: {"code": {"tenants": ["a"], "shared": false}}',
    )

    @property
    def segments_dir(self) -> Path:
        return self.cache_dir / "segments"

    @property
    def store_url(self) -> str:
        """The release store: the one named, else where the embedded one of `up` is."""
        return self.redis_url or f"redis://127.0.0.1:{self.redis_port}/0"

    def check(self) -> None:
        """The store's address is one; the retriever's group is one of the groups."""
        super().check()
        rules.store("redis_url", self.redis_url)
        rules.group("retriever_group", self.retriever_group, self.retriever_groups)


class OrchestratorServiceSettings(LookupSettings):
    """The orchestrator service."""

    orchestrator_port: int = Field(7601, ge=0, le=65535, description="port of the Generate service; 0: any free one")
    verifier_endpoint: str = Field("127.0.0.1:7602", description="host:port of the verifier service")
    proposer_endpoint: str = Field("127.0.0.1:7603", description="host:port of the proposer service; empty: none")
    retriever_endpoint: str = Field(
        "127.0.0.1:7604",
        description="host:port of the retriever service, or one per group, separated by commas; empty: none",
    )
    default_sources: str = Field(
        "prompt_lookup,retrieval", description="sources of a request that names none, separated by commas"
    )
    inline_sources: Literal["", "prompt_lookup"] = Field(
        "prompt_lookup",
        description="light sources that the orchestrator hosts itself, since a call costs more than they do; empty: none",
    )
    default_index: str = Field("", description="index of a request that names none; empty: the only one served")
    budget: Literal["adaptive", "fixed"] = Field(
        "adaptive",
        description="adaptive: verify those of the candidates that make tokens cheaper, none if none do; fixed: all of them",
    )
    node_budget: int = Field(24, ge=0, description="candidates a round, where a request does not say")
    max_node_budget: int = Field(64, ge=1, le=512, description="most candidates a round may ask for")
    max_depth: int = Field(16, ge=1, le=64, description="deepest candidate, where a request does not say")
    retrieval_min_match: int = Field(2, ge=1, le=64, description="shortest suffix that an index is asked to match")
    retrieval_max_match: int = Field(
        64, ge=1, le=4096, description="longest suffix that an index is asked to match; the index's own limit holds too"
    )
    retrieval_spec_factor: int = Field(
        2, ge=0, le=64, description="most candidates that an index may offer per matched token; 0: no such limit"
    )
    propose_deadline_ms: float = Field(50.0, gt=0, le=MAX_MS, description="how long a round waits for its sources")
    verify_timeout_ms: float = Field(30_000.0, gt=0, le=MAX_MS, description="after it one Verify call counts as lost")
    lease_ms: int = Field(60_000, ge=1, le=MAX_MS, description="how long a verifier keeps a session that nobody uses")

    def check(self) -> None:
        """Budgets fit each other, sources and endpoints are such."""
        super().check()
        rules.at_most("node_budget", self.node_budget, "max_node_budget", self.max_node_budget)
        rules.at_most("retrieval_min_match", self.retrieval_min_match, "retrieval_max_match", self.retrieval_max_match)
        rules.sources("default_sources", self.default_sources)
        rules.endpoints("verifier_endpoint", self.verifier_endpoint)
        if self.proposer_endpoint:
            rules.endpoints("proposer_endpoint", self.proposer_endpoint)
        if self.retriever_endpoint:
            rules.endpoints("retriever_endpoint", self.retriever_endpoint, several=True)


class AllSettings(VerifierSettings, ProposerSettings, RetrieverSettings, OrchestratorServiceSettings):
    """The union, for `draftproof up` and `--local`."""

    def check(self) -> None:
        """A round's budget fits the verifier that is started with it."""
        super().check()
        rules.at_most("node_budget", self.node_budget, "max_rows", self.max_rows)


S = TypeVar("S", bound=ProcessSettings)


def load(kind: type[S], **given: object) -> S:
    """Reads the environment; `given` overrides it.

    Raises InvalidArgument naming the variable that is unknown or does not hold what its description says.
    """
    known = SET_UP_VARIABLES | {PREFIX + name.upper() for name in AllSettings.model_fields}
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            near = get_close_matches(name.upper(), sorted(known), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`draftproof settings` lists all"
            raise InvalidArgument(name, f"is no setting; {hint}")
    read = {name.upper(): value for name, value in os.environ.items()}
    own = {name: read[PREFIX + name.upper()] for name in kind.model_fields if PREFIX + name.upper() in read}
    try:
        settings = kind.model_validate({**own, **given})
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + str(first["loc"][0] if first["loc"] else "").upper()
        raise InvalidArgument(name, f"{first['msg']}, not {first['input']!r}") from error
    settings.check()
    return settings
