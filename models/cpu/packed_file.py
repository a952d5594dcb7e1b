"""Packed weights on disk, so that a later start reads them as they lie in memory instead of converting the checkpoint again.

A safetensors file of bytes and vectors, one for each checkpoint and type. It is read whole into the arena, not mapped: a
pass needs the arena's huge pages, which files do not get.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.cpu.packing import Packed, new_arena
from models.cpu.weights import CpuWeights, PassWeights

# Of what packing, packing_groups, weights, embedding and models.quantized make: any change of it is a new one.
LAYOUT = 1

_LENGTH_BYTES = 8
_NAMES: Mapping[str, Any] = {
    "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "F16": np.float16, "F32": np.float32, "I64": np.int64,
}  # fmt: skip
_OPTIONAL = ("qkv_bias", "out_bias", "head_norms")
_log = logging.getLogger(__name__)


def packed_weights(
    folder: Path | None, checkpoint_digest: str, dtype: str, make: Callable[[], CpuWeights]
) -> CpuWeights:
    """The weights of that checkpoint and type from `folder`; where they are not in it, or are of another layout, `make`s
    them and keeps them there for the next start. None: made, and not kept. A folder that cannot be written to is no error.
    """
    if folder is None:
        return make()
    path = folder / f"{checkpoint_digest}-{dtype}-{LAYOUT}.safetensors"
    try:
        with path.open("rb") as file:
            return _read(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError) as error:
        _log.warning("%s cannot be read and is made anew: %s", path.name, error)
    made = make()
    try:
        _write(path, made)
    except OSError as error:
        _log.warning("packed weights are not kept: %s", error)
    return made


def _arrays(weights: CpuWeights) -> dict[str, npt.NDArray[Any]]:
    passes, packed = weights.passes, weights.passes.packed
    every = {
        "arena": packed.arena,
        "offsets": packed.offsets,
        "head": np.array([packed.head, packed.head_kind], np.int64),
        "norms": passes.norms,
        **{name: getattr(passes, name) for name in _OPTIONAL},
        **{f"embedding_{index}": array for index, array in enumerate(weights.embedding)},
    }
    return {name: np.ascontiguousarray(array) for name, array in every.items() if array is not None}


def _write(path: Path, weights: CpuWeights) -> None:
    """Whole or not at all; files of the same checkpoint and type in other layouts go."""
    arrays = _arrays(weights)
    code = {np.dtype(kind): name for name, kind in _NAMES.items()}
    header, end = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": code[array.dtype], "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".packing-", delete=False) as stream:
        try:
            stream.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
            for array in arrays.values():
                array.tofile(stream)
            stream.flush()
            os.replace(stream.name, path)
        except OSError:
            os.unlink(stream.name)
            raise
    for other in path.parent.glob(f"{path.name.rpartition('-')[0]}-*"):
        if other != path:
            other.unlink(missing_ok=True)


def _read(file: BufferedReader) -> CpuWeights:
    """Raises ValueError and KeyError for a file that is cut short or no such one."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > size:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = json.loads(file.read(length))
    arrays = {}
    for name, entry in header.items():
        dtype, shape = np.dtype(_NAMES[entry["dtype"]]), tuple(entry["shape"])
        array = new_arena(math.prod(shape) * dtype.itemsize)
        if file.readinto(array.data) != array.nbytes:
            raise ValueError(f"{name} is cut short")
        arrays[name] = array.view(dtype).reshape(shape)
    head, head_kind = arrays["head"].tolist()
    embedding = tuple(arrays[name] for name in sorted(arrays) if name.startswith("embedding_"))
    if not embedding:
        raise ValueError("it holds no embedding")
    return CpuWeights(
        PassWeights(
            Packed(arrays["arena"], arrays["offsets"], head, head_kind),
            arrays["norms"],
            *(arrays.get(name) for name in _OPTIONAL),
        ),
        embedding,
    )
