"""How weights lie in a panel: 16 outputs, depth-major, in one of four formats.

fp32: [depth][16] floats. bf16: [depth][8] words, word j holding output j in its low half and output j + 8 in its high half,
so that one load, one shift and one mask give 16 fp32 weights.

int8 and int4 go by groups of 32 steps of the depth. int8: 16 scales d (fp16), then [32][16] signed bytes; a weight is q d,
as in GGUF's Q8_0. int4: 16 scales d, 16 offsets m (fp16), then for each four steps 8 words, word j holding in its nibbles,
low ones first, step by step output j and output j + 8; a weight is q d + m, as in Q4_1. Weights are computed in fp32,
rounded once, so a product is bit for bit that of the same weights in fp32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from models.cpu.jit import I64, INT_VECTOR, LANES, VECTOR, jit, vector_intrinsic

FP32, BF16, INT8, INT4 = 0, 1, 2, 3
# Names that a matrix's format goes by outside.
FORMATS = {"float32": FP32, "bfloat16": BF16, "int8": INT8, "int4": INT4}

PANEL = 2 * LANES

# Bytes of 16 outputs a step: those of scales and offsets included.
STEP_BYTES = (64, 32, 17, 10)
# Steps from one request for memory ahead to the next: at most a cache line of the panel.
ASK_EVERY = (1, 2, 2, 4)

# Steps of the depth a turn of the loop over them: fewer branches and counters beside the products; as many as a word of
# nibbles holds.
UNROLLED = 4

_NIBBLES = 8
_HALF = ir.VectorType(ir.HalfType(), LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)


@jit
def panel_bytes(kind, depth):  # type: ignore[no-untyped-def]
    """Bytes of a panel of that format and depth."""
    if kind == BF16:
        return depth * 32
    if kind == INT8:
        return depth * 17
    if kind == INT4:
        return depth * 10
    return depth * 64


def load_weights(builder: ir.IRBuilder, w: Any, k: Any, bf16: bool) -> list[Any]:
    """Both halves of step k of an fp32 or bf16 panel at w."""
    if not bf16:
        base = builder.inttoptr(builder.add(w, builder.shl(k, I64(6))), VECTOR.as_pointer())
        return [builder.load(builder.gep(base, [I64(half)]), align=4) for half in (0, 1)]
    words = builder.load(builder.inttoptr(builder.add(w, builder.shl(k, I64(5))), INT_VECTOR.as_pointer()), align=4)
    low = builder.shl(words, _splat(16))
    high = builder.and_(words, _splat(0xFFFF0000))
    return [builder.bitcast(half, VECTOR) for half in (low, high)]


class GroupedPanel:
    """Code that reads one group of an int8 or int4 panel."""

    def __init__(self, builder: ir.IRBuilder, kind: int, group: Any) -> None:
        """group: address of the group."""
        self._builder, self._kind = builder, kind
        self._fma = vector_intrinsic(builder.module, "fma", 3)
        scales = [self._metadata(group, half) for half in (0, 1)]
        # Nibbles are left in their places in the word, where they read that many times too great.
        self._scales = (
            [builder.fmul(scales[place % 2], _floats(2.0 ** -_shift(place))) for place in range(_NIBBLES)]
            if kind == INT4
            else scales
        )
        self._offsets = [self._metadata(group, 2 + half) for half in (0, 1)] if kind == INT4 else []
        self._codes = builder.add(group, I64(2 * LANES * (4 if kind == INT4 else 2)))

    def step(self, first: Any, index: int) -> list[Any]:
        """Both halves' weights of step `first` + `index`, <8 x float>; first: a multiple of four below 32, index < 4."""
        builder = self._builder
        if self._kind == INT8:
            start = builder.add(self._codes, builder.mul(first, I64(2 * LANES)))
            return [self._byte(start, index * 2 * LANES, half) for half in (0, 1)]
        words = self._load(builder.add(self._codes, builder.shl(first, I64(3))), INT_VECTOR)
        return [self._nibble(words, 2 * index + half) for half in (0, 1)]

    def _metadata(self, group: Any, index: int) -> Any:
        place = self._builder.add(group, I64(2 * LANES * index))
        return self._builder.fpext(self._load(place, _HALF), VECTOR)

    def _load(self, place: Any, kind: ir.VectorType) -> Any:
        return self._builder.load(self._builder.inttoptr(place, kind.as_pointer()), align=2)

    def _byte(self, start: Any, offset: int, half: int) -> Any:
        builder = self._builder
        code = self._load(builder.add(start, I64(offset + LANES * half)), _BYTES)
        return builder.fmul(builder.sitofp(builder.sext(code, INT_VECTOR), VECTOR), self._scales[half])

    def _nibble(self, words: Any, place: int) -> Any:
        """A nibble is masked out and left where it is, which saves a shift: products with powers of two are exact. The last
        one's highest bit would be read as a sign, so that one is shifted.
        """
        builder = self._builder
        last = place == _NIBBLES - 1
        code = builder.lshr(words, _splat(28)) if last else builder.and_(words, _splat(15 << 4 * place))
        return builder.call(self._fma, [builder.sitofp(code, VECTOR), self._scales[place], self._offsets[place % 2]])


def _shift(place: int) -> int:
    return 0 if place == _NIBBLES - 1 else 4 * place


def _floats(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _splat(value: int) -> ir.Constant:
    return ir.Constant(INT_VECTOR, [value] * LANES)
