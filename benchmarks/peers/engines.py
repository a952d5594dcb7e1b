"""The engines that ours is measured beside: how each is prepared, started and asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.client import Peer, running_peer
from benchmarks.peers.environments import LLAMA_CPP, OPENVINO, PeerMissing, installed
from benchmarks.peers.gguf_file import Store, gguf_file
from contracts.errors import FailedPrecondition, InvalidArgument
from models.checkpoint import DEFAULT_SOURCE, fetch_gguf

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Engine:
    """modes: looked-up tokens a step by mode, 0 for plain decoding. command: prepares what is missing and says how to start;
    raises PeerMissing.
    """

    name: str
    modes: Mapping[str, int]
    command: Callable[[Path, Path], list[str]]


def _weights(checkpoint: Path, folder: Path, store: Store) -> str:
    try:
        return str(gguf_file(checkpoint, folder / "weights", store))
    except InvalidArgument as error:
        raise PeerMissing(str(error)) from error


def _transformers(checkpoint: Path, folder: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.peers.transformers_peer", str(checkpoint), "--dtype", "bfloat16"]


def _llama_cpp(checkpoint: Path, folder: Path) -> list[str]:
    python = str(installed(LLAMA_CPP, folder))
    return [python, str(HERE / "llama_cpp_peer.py"), _weights(checkpoint, folder, "bf16")]


def _llama_cpp_q4_1(checkpoint: Path, folder: Path) -> list[str]:
    if checkpoint.name != DEFAULT_SOURCE:
        raise PeerMissing(f"{checkpoint.name} was not converted from a Q4_1 file")
    python = str(installed(LLAMA_CPP, folder))
    try:
        weights = fetch_gguf(folder / "weights" / "q4_1")
    except FailedPrecondition as error:
        raise PeerMissing(str(error)) from error
    return [python, str(HERE / "llama_cpp_peer.py"), str(weights)]


def _openvino(*modes: str) -> Callable[[Path, Path], list[str]]:
    def command(checkpoint: Path, folder: Path) -> list[str]:
        python = str(installed(OPENVINO, folder))
        # GenAI's GGUF reader knows no bf16; fp16 holds the same values, or the file is refused.
        weights = _weights(checkpoint, folder, "f16")
        return [python, str(HERE / "openvino_peer.py"), weights, "--modes", ",".join(modes)]

    return command


# The numbers of looked-up tokens are those of each engine's own documentation; llama.cpp, whose defaults are for GPUs
# (n-grams of 12, 48 tokens), gets those of OpenVINO.
STREAMS = (
    Engine("transformers", {"plain": 0, "lookup": 10}, _transformers),
    Engine("llama_cpp", {"plain": 0, "lookup": 5}, _llama_cpp),
    Engine("openvino", {"plain": 0, "lookup": 5}, _openvino("plain", "lookup")),
)
# Over the very file whose values the demo checkpoint has.
CODES = (Engine("llama_cpp_q4_1", {"plain": 0, "lookup": 5}, _llama_cpp_q4_1),)
BATCHING = (Engine("openvino_batching", {}, _openvino("batch")),)


def start(
    engines: Iterable[Engine], checkpoint: Path, folder: Path, stack: ExitStack
) -> tuple[dict[str, Peer], dict[str, str]]:
    """(running peers by engine, why the others are missing by engine); the peers end with `stack`."""
    peers: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for engine in engines:
        try:
            command = engine.command(checkpoint, folder)
            peers[engine.name] = stack.enter_context(running_peer(command, folder / f"{engine.name}.log"))
        except PeerMissing as error:
            missing[engine.name] = str(error)
    return peers, missing
