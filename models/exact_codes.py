"""Which of the types of codes holds a checkpoint without loss, if any: what `auto` chooses by (docs/decisions/0017)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from torch import Tensor

from models.checkpoint import remembered, weight_files
from models.config import read_config
from models.quantized import QuantizedMatrix, holds_exactly, quantize_int4, quantize_int8
from models.weights import DecoderWeights, read_weights

Codes = Literal["int8", "int4"]
_NONE = "none"
_QUANTIZE: dict[Codes, Callable[[Tensor], QuantizedMatrix]] = {"int4": quantize_int4, "int8": quantize_int8}


def exact_codes(directory: Path) -> Codes | None:
    """The narrowest type whose codes give every value of the checkpoint's matrices again, as those of a checkpoint that was
    converted from a Q4_1 or Q8_0 file do; None where none does, which the first rows of a matrix tell.

    Found out once and kept beside the checkpoint. Raises what reading the weights raises.
    """
    files = [directory / "config.json", *weight_files(directory)]
    found = remembered(directory, "exact codes", files, lambda: _find(directory))
    return next((codes for codes in _QUANTIZE if codes == found), None)


def _find(directory: Path) -> str:
    weights = read_weights(directory, read_config(directory), None)
    # Beside layers of either type the vocabulary has eight bits.
    if not all(holds_exactly(matrix, quantize_int8) for matrix in (weights.embedding, weights.head)):
        return _NONE
    return next((codes for codes, quantize in _QUANTIZE.items() if _holds(weights, quantize)), _NONE)


def _holds(weights: DecoderWeights, quantize: Callable[[Tensor], QuantizedMatrix]) -> bool:
    return all(holds_exactly(matrix, quantize) for matrix in _layer_matrices(weights))


def _layer_matrices(weights: DecoderWeights) -> Iterator[Tensor]:
    for layer in weights.layers:
        yield from (layer.qkv, layer.out, layer.gate_up, layer.down)
