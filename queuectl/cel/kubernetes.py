"""The libraries of Kubernetes: quantities, semantic versions, lists, sets and regular expressions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import re2
from cel_expr_python import cel
from google.protobuf.message import Message

from queuectl.cel import library_types
from queuectl.cel.expression import Function, no_overload
from queuectl.cel.library_types import QUANTITY, SEMVER, Amount, same, within
from queuectl.domain.semver import read_semver

_T: Final = cel.Type
_Q: Final = cel.Type(QUANTITY)
_S: Final = cel.Type(SEMVER)
_COMPARABLE: Final = (_T.INT, _T.UINT, _T.DOUBLE, _T.BOOL, _T.DURATION, _T.TIMESTAMP, _T.STRING)
_SUMMABLE: Final = (_T.INT, _T.UINT, _T.DOUBLE)

# ---- quantities and semantic versions


def _order(operand: Any, kind: str) -> Any:
    """A value that has the order of quantities, or of versions."""
    if library_types.kind_of(operand) != kind:
        raise no_overload()
    return (
        library_types.amount(operand).exact
        if kind == QUANTITY
        else library_types.version(operand).order
    )


def _compare(left: Any, right: Any) -> int:
    kind = library_types.kind_of(left) or ""
    one, other = _order(left, kind), _order(right, kind)
    return int(one > other) - int(one < other)


def _of(kind: str, operand: Any) -> Message:
    if library_types.kind_of(operand) != kind:
        raise no_overload()
    message: Message = operand
    return message


def _text(operand: Any) -> str:
    if not isinstance(operand, str):
        raise no_overload()
    return operand


def _amount(operand: Any) -> Amount:
    return library_types.amount(_of(QUANTITY, operand))


def _integer(operand: Any) -> int:
    amount = _amount(operand)
    if not amount.integral:
        raise ValueError("cannot convert value to integer")
    return amount.exact.numerator


def _sum_of(left: Any, right: Any, sign: int) -> Message:
    number = isinstance(right, int) and not isinstance(right, bool)
    other = Amount(Fraction(right), True) if number else _amount(right)
    signed = other._replace(exact=sign * other.exact)
    return library_types.quantity(library_types.added(_amount(left), signed))


def _sign(operand: Any) -> int:
    exact = _amount(operand).exact
    return int(exact > 0) - int(exact < 0)


def _holds(read: Callable[..., Any], *arguments: Any) -> bool:
    _text(arguments[0])
    try:
        read(*arguments)
    except ValueError:
        return False
    return True


def _version(text: Any, normalize: bool = False) -> Message:
    written = library_types.normalized(_text(text)) if normalize else _text(text)
    return library_types.semver(read_semver(written))


def _part(name: str) -> Callable[[Any], int]:
    return lambda value: int(getattr(library_types.version(_of(SEMVER, value)), name))


_BOTH: Final = ((_Q, _Q), (_S, _S))
_VALUES: Final = (
    Function(
        "quantity",
        [(_Q, [_T.STRING])],
        lambda t: library_types.quantity(library_types.read_quantity(_text(t))),
        False,
    ),
    Function(
        "isQuantity",
        [(_T.BOOL, [_T.STRING])],
        lambda t: _holds(library_types.read_quantity, t),
        False,
    ),
    Function("isGreaterThan", [(_T.BOOL, b) for b in _BOTH], lambda a, b: _compare(a, b) > 0),
    Function("isLessThan", [(_T.BOOL, b) for b in _BOTH], lambda a, b: _compare(a, b) < 0),
    Function("compareTo", [(_T.INT, b) for b in _BOTH], _compare),
    Function("asInteger", [(_T.INT, [_Q])], _integer),
    Function("isInteger", [(_T.BOOL, [_Q])], lambda q: _amount(q).integral),
    Function("sign", [(_T.INT, [_Q])], _sign, False),
    Function("add", [(_Q, [_Q, _Q]), (_Q, [_Q, _T.INT])], lambda a, b: _sum_of(a, b, 1)),
    Function("sub", [(_Q, [_Q, _Q]), (_Q, [_Q, _T.INT])], lambda a, b: _sum_of(a, b, -1)),
    Function("semver", [(_S, [_T.STRING]), (_S, [_T.STRING, _T.BOOL])], _version, False),
    Function(
        "isSemver",
        [(_T.BOOL, [_T.STRING]), (_T.BOOL, [_T.STRING, _T.BOOL])],
        lambda *given: _holds(_version, *given),
        False,
    ),
    *(Function(name, [(_T.INT, [_S])], _part(name)) for name in ("major", "minor", "patch")),
)


# ---- lists and sets


def _extreme(choose: Callable[[Any], Any], name: str) -> Callable[[list[Any]], Any]:
    def run(operands: list[Any]) -> Any:
        if not operands:
            raise ValueError(f"{name} called on empty list")
        return choose(operands)

    return run


def _positions(elements: list[Any], element: Any) -> list[int]:
    return [i for i, each in enumerate(elements) if same(each, element)] or [-1]


def _contains(elements: list[Any], needed: list[Any]) -> bool:
    return all(within(each, elements) for each in needed)


def _intersects(left: list[Any], right: list[Any]) -> bool:
    return any(_contains(left, [other]) for other in right)


_ANY_LIST: Final = _T.List(_T.DYN)
_SETS: Final = [(_T.BOOL, [_ANY_LIST, _ANY_LIST])]
_LISTS: Final = (
    Function(
        "isSorted",
        [(_T.BOOL, [_T.List(of)]) for of in _COMPARABLE],
        lambda items: all(a <= b for a, b in pairwise(items)),
        on=_T.LIST,
    ),
    Function("sum", [(of, [_T.List(of)]) for of in _SUMMABLE], sum, on=_T.LIST),
    *(
        Function(
            name, [(of, [_T.List(of)]) for of in _COMPARABLE], _extreme(choose, name), on=_T.LIST
        )
        for name, choose in (("min", min), ("max", max))
    ),
    Function(
        "indexOf", [(_T.INT, [_ANY_LIST, _T.DYN])], lambda a, b: _positions(a, b)[0], on=_T.LIST
    ),
    Function(
        "lastIndexOf",
        [(_T.INT, [_ANY_LIST, _T.DYN])],
        lambda a, b: _positions(a, b)[-1],
        on=_T.LIST,
    ),
    Function("sets.contains", _SETS, _contains, False, _T.LIST),
    Function("sets.intersects", _SETS, _intersects, False, _T.LIST),
    Function(
        "sets.equivalent", _SETS, lambda a, b: _contains(a, b) and _contains(b, a), False, _T.LIST
    ),
)


# ---- regular expressions


def _find(text: Any, pattern: Any) -> str:
    found = _pattern(pattern).search(_text(text))
    return str(found.group()) if found else ""


def _find_all(text: Any, pattern: Any, limit: int = -1) -> list[str]:
    """As in Go, an empty match right behind another match does not count."""
    matches, end = [], -1
    for found in _pattern(pattern).finditer(_text(text)):
        if found.group() or found.start() != end:
            matches.append(str(found.group()))
        end = found.end()
    return matches if limit < 0 else matches[:limit]


def _quiet() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options


_QUIET: Final = _quiet()


def _pattern(pattern: Any) -> Any:
    try:
        return re2.compile(_text(pattern), _QUIET)
    except re2.error as error:
        raise ValueError(f"Illegal regex: {error.args[0].decode()}") from None


_REGEX: Final = (
    Function("find", [(_T.STRING, [_T.STRING, _T.STRING])], _find),
    Function(
        "findAll",
        [
            (_T.List(_T.STRING), [_T.STRING, _T.STRING]),
            (_T.List(_T.STRING), [_T.STRING, _T.STRING, _T.INT]),
        ],
        _find_all,
    ),
)

KUBERNETES: Final = (*_VALUES, *_LISTS, *_REGEX)
"""All of them."""
