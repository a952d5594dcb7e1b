"""How functions here are compiled: once, without the GIL, kept on disk; and the bridge from vector IR into them.

numba compiles the scalar code around the kernels; the kernels are LLVM IR on <8 x float>, which LLVM lowers to AVX2, to
half of AVX-512 or to two NEON registers. Nothing is compiled with fast-math: sums keep the order written, which row
invariance rests on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from llvmlite import ir
from numba.core import types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

P = ParamSpec("P")
R = TypeVar("R")

LANES = 8
I32, I64, F32, VOID = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.VoidType()
VECTOR = ir.VectorType(F32, LANES)
INT_VECTOR = ir.VectorType(I32, LANES)

# numba's annotations do not know all of its options.
_njit: Any = numba.njit

# Name, time of change and size of each file here.
_SOURCES = [
    (path.name, path.stat().st_mtime, path.stat().st_size) for path in sorted(Path(__file__).parent.glob("*.py"))
]

_NUMBA_TYPES = {"void": types.void, "i32": types.int32, "i64": types.int64, "float": types.float32}


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile for calls from compiled code; inside, addresses are int64 and wrong ones crash.

    There is no way in from Python: building one takes a quarter of the time to compile.
    """
    return _jit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def jit_entry(function: Callable[P, R]) -> Callable[P, R]:
    """As `jit`, and callable from Python."""
    return _jit(function)


def _jit(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    compiled = _njit(nogil=True, boundscheck=False, **options)(function)
    _keep_on_disk(compiled)
    return cast("Callable[P, R]", compiled)


def compile_entry(function: Callable[..., None], signature: Any) -> int:
    """Compile for calls through an address, which it returns; valid for the process's life."""
    return int(_compiled(function, signature).address)


@cache
def _compiled(function: Callable[..., None], signature: Any) -> Any:
    """Never dropped from the cache: the code goes with the object."""
    entry = CFunc(function, (signature.args, signature.return_type), locals={}, options={})
    _keep_on_disk(entry)
    entry.compile()
    return entry


def _keep_on_disk(compiled: Any) -> None:
    """Let numba reuse compiled code until any source here changes.

    numba itself looks at the function's own file only, but what it keeps includes everything the function calls.
    """
    try:
        compiled.enable_caching()
    except RuntimeError:
        # No folder numba may cache in (read-only image): compile at each start.
        return
    compiled._cache._cache_file._source_stamp = _SOURCES


def declare(entry: Callable[..., Any]) -> Any:
    """Make `entry(context, *argument_types)`, which returns `link(...)`, callable from jitted code."""
    return intrinsic(entry)


def link(name: str, result: ir.Type, arguments: tuple[ir.Type, ...], build: Callable[..., None]) -> tuple[Any, Any]:
    """Signature and code of a call of an LLVM function whose body `build(builder at its entry, *arguments)` writes.

    Addresses are i64. The name is shared by all calls in one compiled module, so the body exists once.
    """

    def codegen(_context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        made = builder.call(function_in(builder.module, name, result, arguments, build), values)
        return None if result is VOID else made

    return _NUMBA_TYPES[str(result)](*(_NUMBA_TYPES[str(argument)] for argument in arguments)), codegen


def function_in(
    module: ir.Module, name: str, result: ir.Type, arguments: tuple[ir.Type, ...], build: Callable[..., None]
) -> ir.Function:
    """The LLVM function of that name in `module`, built when first asked for."""
    known = module.globals.get(name)
    if known is not None:
        return known
    function = ir.Function(module, ir.FunctionType(result, arguments), name)
    function.linkage = "linkonce_odr"
    build(ir.IRBuilder(function.append_basic_block("entry")), *function.args)
    return function


def vector_intrinsic(module: ir.Module, name: str, arity: int) -> ir.Function:
    """LLVM's own operation `name` on <8 x float>."""
    full = f"llvm.{name}.v{LANES}f32"
    return module.globals.get(full) or ir.Function(module, ir.FunctionType(VECTOR, [VECTOR] * arity), full)


@declare
def get(_context: Any, place: Any) -> Any:
    """The float32 at an address."""
    return link("dp_get", F32, (I64,), _build_get)


@declare
def get_half(_context: Any, place: Any) -> Any:
    """The bf16 at an address, as float32."""
    return link("dp_get_half", F32, (I64,), _build_get_half)


@declare
def get_int(_context: Any, place: Any) -> Any:
    """The int64 at an address."""
    return link("dp_get_int", I64, (I64,), _build_get_int)


@declare
def put(_context: Any, place: Any, value: Any) -> Any:
    """Store a float32 at an address."""
    return link("dp_put", VOID, (I64, F32), _build_put)


@declare
def put_int(_context: Any, place: Any, value: Any) -> Any:
    """Store an int64 at an address."""
    return link("dp_put_int", VOID, (I64, I64), _build_put_int)


def _build_get(builder: ir.IRBuilder, place: Any) -> None:
    builder.ret(builder.load(builder.inttoptr(place, F32.as_pointer()), align=4))


def _build_get_half(builder: ir.IRBuilder, place: Any) -> None:
    bits = builder.load(builder.inttoptr(place, ir.IntType(16).as_pointer()), align=2)
    builder.ret(builder.bitcast(builder.shl(builder.zext(bits, I32), I32(16)), F32))


def _build_get_int(builder: ir.IRBuilder, place: Any) -> None:
    builder.ret(builder.load(builder.inttoptr(place, I64.as_pointer()), align=8))


def _build_put(builder: ir.IRBuilder, place: Any, value: Any) -> None:
    builder.store(value, builder.inttoptr(place, F32.as_pointer()), align=4)
    builder.ret_void()


def _build_put_int(builder: ir.IRBuilder, place: Any, value: Any) -> None:
    builder.store(value, builder.inttoptr(place, I64.as_pointer()), align=8)
    builder.ret_void()
