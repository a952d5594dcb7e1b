"""All four services as processes over the tiny checkpoint, with an embedded Redis and an index of one text."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from retriever.redis_store import RedisStore
from retriever.sources import Kind, Source
from services.indexing import build_index
from services.redis_embedded import embedded_redis
from tests.contract.processes import ServiceProcess

INDEX = "tiny"
TEXT = "The quick brown fox jumps over the lazy dog. " * 20


@dataclass
class TinyStack:
    """The processes by name; each may be killed and started by a test."""

    directory: Path
    redis_url: str
    verifier: ServiceProcess
    proposer: ServiceProcess
    retriever: ServiceProcess
    orchestrator: ServiceProcess

    @property
    def processes(self) -> tuple[ServiceProcess, ...]:
        return self.verifier, self.proposer, self.retriever, self.orchestrator


@contextmanager
def tiny_stack(checkpoint: Path, directory: Path, **settings: object) -> Iterator[TinyStack]:
    """Healthy inside the block. settings: for all processes."""
    with ExitStack() as stack:
        redis = stack.enter_context(embedded_redis(directory / "redis"))
        corpus = directory / "corpus.txt"
        corpus.write_text(TEXT)
        store = RedisStore(redis.url)
        build_index(
            store,
            INDEX,
            [Source(corpus, Kind.TEXT)],
            checkpoint,
            directory / "build",
            licence="CC0",
            progress=lambda *_: None,
        )
        store.close()
        common = {
            "model": checkpoint,
            "cache_dir": directory,
            "redis_url": redis.url,
            "dtype": "float32",
            "threads": 1,
            "kv_tokens": 4096,
            **settings,
        }
        peers = [
            ServiceProcess(name, directory / f"{name}.log", **common) for name in ("verifier", "proposer", "retriever")
        ]
        # What is tested here is the services, prompt lookup in its own among them.
        common["inline_sources"] = ""
        endpoints = {f"{peer.name}_endpoint": peer.endpoint for peer in peers}
        orchestrator = ServiceProcess("orchestrator", directory / "orchestrator.log", **common, **endpoints)
        for process in (*peers, orchestrator):
            process.start(wait=False)
            stack.callback(process.__exit__, None, None, None)
        for process in (*peers, orchestrator):
            process.wait_healthy()
        yield TinyStack(directory, redis.url, peers[0], peers[1], peers[2], orchestrator)
