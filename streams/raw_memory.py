"""Loads and stores at plain addresses, for compiled code that passes many buffers from function to function.

numba counts references to an array at each function that it is passed to, inlined or not; with arrays,
reading an event took ten times as long. An address costs nothing, and protects from nothing: callers own the
bounds. All words are of 8 bytes, the first byte the lowest, wherever they lie.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, njit, types

if sys.byteorder != "little":
    raise ImportError("The columnar reader of outcomes knows little-endian machines only; this one is not.")

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_intrinsic: _Decorator = extending.intrinsic
_BIT, _BYTE, _WORD, _REAL = ir.IntType(1), ir.IntType(8), ir.IntType(64), ir.DoubleType()


def compiled(*, cache: bool = False, nogil: bool = False, forceinline: bool = False) -> _Decorator:
    """numba's ``njit``, whose own annotations have a compiled function without arguments."""
    decorator: _Decorator = njit(cache=cache, nogil=nogil, forceinline=forceinline)
    return decorator


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@_intrinsic
def byte_at(context: Any, at: Any) -> Any:
    """The byte at this address as an integer."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(_at(builder, args[0], _BYTE)), _WORD)

    return types.int64(types.int64), generate


@_intrinsic
def word_at(context: Any, at: Any) -> Any:
    """The word at this address."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_at(builder, args[0], _WORD), align=1)

    return types.int64(types.int64), generate


@_intrinsic
def real_at(context: Any, at: Any) -> Any:
    """The double at this address."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_at(builder, args[0], _REAL), align=1)

    return types.float64(types.int64), generate


@_intrinsic
def put_byte(context: Any, at: Any, value: Any) -> Any:
    """Store the lowest byte of an integer."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(builder.trunc(args[1], _BYTE), _at(builder, args[0], _BYTE))
        return target.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def put_word(context: Any, at: Any, value: Any) -> Any:
    """Store a word."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], _at(builder, args[0], _WORD), align=1)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def put_real(context: Any, at: Any, value: Any) -> Any:
    """Store a double."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], _at(builder, args[0], _REAL), align=1)
        return target.get_dummy_value()

    return types.void(types.int64, types.float64), generate


@_intrinsic
def lowest_byte(context: Any, word: Any) -> Any:
    """The place of the lowest byte of a word that is not 0, from 0 to 7; there must be one."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.cttz(args[0], ir.Constant(_BIT, 1))
        return builder.lshr(bits, ir.Constant(_WORD, 3))

    return types.int64(types.int64), generate
