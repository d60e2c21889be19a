"""An upper bound of the work of one evaluation, from the syntax tree alone.

The API server estimates the cost of an expression in the same way. Its limit is far above what can be evaluated for each kind of
device in each plan. One operation takes at most about a microsecond: a node of the tree, an element of a list or some characters that
a function reads. A function in Python takes 60.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuectl.cel import checked

_CHARACTERS: Final = 16  # that are read in one operation
_CALL: Final = 60  # operations of a call of Python
_MATCH: Final = 32  # operations for each match of a regular expression
_NUMBER: Final = 64  # characters of a number or a time as text
_PRECISION: Final = 1_000  # digits after the point that `format` writes at most


@dataclass(frozen=True, slots=True)
class Size:
    """A bound of the size of a value.

    Attributes:
        length: characters of a text, or elements of a list or map; 1 for each other value.
        element_size: of each element; None for a value without elements.
    """

    length: int = 1
    element_size: Size | None = None

    @property
    def total(self) -> int:
        """Characters, and those of all elements."""
        return self.length * (1 if self.element_size is None else self.element_size.total)

    @property
    def reading(self) -> int:
        """Operations that read it with all of its elements."""
        return (
            1 + self.length // _CHARACTERS
            if self.element_size is None
            else self.length * self.element_size.reading
        )

    @property
    def element(self) -> Size:
        """Of a list or map; of a value of unknown type, itself."""
        return self.element_size or self

    def __or__(self, other: Size) -> Size:
        return Size(max(self.length, other.length), _either(self.element_size, other.element_size))


def _either(left: Size | None, right: Size | None) -> Size | None:
    return left | right if left is not None and right is not None else left or right


_ONE: Final = Size()
_First = Callable[..., Size]


def _joined(texts: Size, separator: Size = _ONE) -> Size:
    return Size(texts.total + texts.length * separator.length)


def _replaced(text: Size, _old: Size, new: Size, *_: Size) -> Size:
    return Size(text.length + (text.length + 1) * new.length)


def _formatted(text: Size, arguments: Size) -> Size:
    return Size(text.length + text.length // 2 * max(_PRECISION + _NUMBER, arguments.total))


_SIZES: Final[Mapping[str, _First]] = {
    "_[_]": lambda container, _: container.element,
    "_[?_]": lambda container, _: container.element,
    "_?._": lambda container, _: container.element,
    "_?_:_": lambda _, one, other: one | other,
    "orValue": lambda one, other: one | other,
    "or": lambda one, other: one | other,
    "optional.of": lambda one: one,
    "optional.ofNonZeroValue": lambda one: one,
    "value": lambda one: one,
    "number": lambda one: one,
    "min": lambda items: items.element,
    "max": lambda items: items.element,
    "_+_": lambda one, other: Size(
        one.length + other.length, _either(one.element_size, other.element_size)
    ),
    "split": lambda text, *_: Size(text.length + 1, text),
    "findAll": lambda text, *_: Size(text.length + 1, text),
    "find": lambda text, _: text,
    "join": _joined,
    "replace": _replaced,
    "format": _formatted,
    "strings.quote": lambda text: Size(8 * text.length + 2),
    "upperAscii": lambda text: text,
    "lowerAscii": lambda text: text,
    "reverse": lambda text: text,
    "trim": lambda text: text,
    "substring": lambda text, *_: text,
    "charAt": lambda _text, _: Size(4),
    "string": lambda value: Size(max(_NUMBER, value.total)),
    "bytes": lambda value: Size(4 * value.total),
    "quantity": lambda text: text,
    "semver": lambda text, *_: text,
    "add": lambda one, other: Size(one.length + other.length),
    "sub": lambda one, other: Size(one.length + other.length),
}
"""The size of the result of a function from those of its arguments; 1 for each other function."""
_PASSING: Final = frozenset(
    {"_[_]", "_[?_]", "_?._", "_?_:_", "orValue", "or", "optional.of", "value"}
)
"""Functions that do not read their arguments."""
_PRODUCTS: Final = frozenset({"matches", "find", "findAll"})
"""Functions that can read their first argument once for each part of the second one."""
_PAIRS: Final = frozenset({"sets.contains", "sets.intersects", "sets.equivalent"})
"""Functions that compare each element with each."""


class Costs:
    """Bounds for the expressions of one environment."""

    def __init__(self, variables: Mapping[str, Size], in_python: Collection[str]) -> None:
        """``variables``: by name. ``in_python``: the functions that are implemented in Python."""
        self._variables = variables
        self._in_python = frozenset(in_python)

    def operations(self, expr: Any) -> int:
        """The largest number of operations of one evaluation. ``expr``: a tree without ``cel.bind``."""
        return _CALL + self._of(expr, self._variables)[0]

    def _of(self, expr: Any, variable_sizes: Mapping[str, Size]) -> tuple[int, Size]:
        """Operations, and the size of the value. ``variable_sizes``: of the variables."""
        kind = expr.WhichOneof("kind")
        if kind == "ident":
            return 1, variable_sizes.get(expr.ident.name, _ONE)
        if kind == "comprehension":
            return self._macro(expr.comprehension, variable_sizes)
        parts = [self._of(part, variable_sizes) for part in checked.children(expr)]
        cost = 1 + sum(operations for operations, _ in parts)
        sizes = [size for _, size in parts]
        match kind:
            case "const":
                length = expr.ByteSize()  # a number or a time has a few bytes
                return cost + length // _CHARACTERS, Size(length)
            case "select":
                return cost, sizes[0].element
            case "list" | "struct":
                item = None
                for size in sizes:
                    item = _either(item, size)
                return cost, Size(len(sizes), item or _ONE)
        more, size = self._call(expr.call.function, sizes)
        return cost + more, size

    def _call(self, function: str, sizes: Sequence[Size]) -> tuple[int, Size]:
        made = _SIZES.get(function)
        size = made(*sizes) if made is not None else _ONE
        if function in _PASSING:
            return 0, size
        cost = size.reading + sum(one.reading for one in sizes)
        if function in _PRODUCTS:
            cost += sizes[0].total * sizes[1].total // _CHARACTERS
        if function == "findAll":
            cost += _MATCH * sizes[0].length
        if function in _PAIRS:
            cost += 2 * sizes[0].length * sizes[1].reading
        if function in self._in_python:
            cost += _CALL
        return cost, size

    def _macro(self, macro: Any, variable_sizes: Mapping[str, Size]) -> tuple[int, Size]:
        """Its body is evaluated for each element. It adds at most as much to its result each time as the first time."""
        over, items = self._of(macro.iter_range, variable_sizes)
        begun, first = self._of(macro.accu_init, variable_sizes)
        within = {**variable_sizes, macro.iter_var: items.element, macro.accu_var: first}
        _, once = self._of(macro.loop_step, within)
        grown = first.length + items.length * max(0, once.length - first.length)
        # The library adds to a list in place.
        result = Size(grown, _either(first.element_size, once.element_size))
        each = self._of(macro.loop_condition, within)[0] + self._of(macro.loop_step, within)[0]
        last, size = self._of(macro.result, {**variable_sizes, macro.accu_var: result})
        return 1 + over + begun + last + items.length * (1 + each), size
