"""Documents that nest too deep for a decoder that recurses.

The API server accepts 10,000 levels, in fields that no reader uses: field owners, parameters of drivers, components of an
AppWrapper. :mod:`msgspec` recurses also over a value that it skips, so one such object would make a whole page of a list unreadable.
:func:`shallow` empties what is deeper than any field that queuectl reads, without recursion. A higher recursion limit is not enough:
it is not the one of C code from Python 3.12 on, and the stack of a thread can be smaller than the limit needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

LEVELS: Final = 100
"""Levels of arrays and objects in one object of the API server that queuectl reads. No field that it uses has as many."""

_PART: Final = 1 << 20  # bytes at once, so that memory does not grow with a page
_QUOTE: Final = ord('"')
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1

_Decoded = TypeVar("_Decoded")


def decoded(
    decode: Callable[[bytes | msgspec.Raw], _Decoded], document: bytes | msgspec.Raw, levels: int
) -> _Decoded:
    """The decoded document, or its upper levels if it nests too deep for the decoder.

    A page of a list has two levels above its objects, and a line of a watch has one.
    """
    try:
        return decode(document)
    except RecursionError:
        return decode(shallow(bytes(document), levels))


def shallow(document: bytes, levels: int) -> bytes:
    """The same document, in which each array and object below the given number of levels is empty.

    In linear time and without recursion. Bytes that are no JSON become other bytes that are no JSON.
    """
    return b"".join(_parts(document, levels))


def _parts(document: bytes, levels: int) -> Iterator[bytes]:
    # Without escaped quotes, each quote begins or ends a string. Backslashes occur in strings only.
    plain = document.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    depth, in_string = 0, False
    for start in range(0, len(document), _PART):
        part = np.frombuffer(plain, np.uint8, min(_PART, len(plain) - start), start)
        inside = np.bitwise_xor.accumulate(part == _QUOTE) ^ in_string
        steps = np.where(inside, np.int8(0), _STEPS[part])
        depths = np.cumsum(steps, dtype=np.int64) + depth
        depth, in_string = int(depths[-1]), bool(inside[-1])
        # The brackets of a value that is emptied belong to the level above.
        kept = depths - (steps > 0) <= levels
        yield _bytes(document, start, part.size)[kept].tobytes()


def _bytes(document: bytes, start: int, size: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(document, np.uint8, size, start)
