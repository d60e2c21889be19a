"""Values of CEL that Kubernetes adds, and the operators that differ for them.

Quantities and semantic versions are messages with a canonical text. The operators give the results of Kubernetes for quantities,
versions and booleans.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any, Final, NamedTuple

from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from queuectl.cel.expression import EvaluationError, Function, no_overload
from queuectl.domain.quantity import exact_quantity, is_quantity
from queuectl.domain.semver import Semver, read_semver

# ---- Messages

QUANTITY: Final = "kubernetes.Quantity"
SEMVER: Final = "kubernetes.Semver"
_LARGEST: Final = 2**63 - 1
_FINEST: Final = 10**9  # parts of a whole
_MOST_DIGITS: Final = 18  # of a decimal number that Kubernetes holds as an integer


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="kubernetes.proto", package="kubernetes", syntax="proto3"
    )
    for name in (QUANTITY, SEMVER):
        message = file.message_type.add(name=name.rpartition(".")[2])
        message.field.add(
            name="canonical", number=1, type=types.TYPE_STRING, label=types.LABEL_OPTIONAL
        )
        for number, flag in enumerate(("integral", "computed"), start=2):
            message.field.add(
                name=flag, number=number, type=types.TYPE_BOOL, label=types.LABEL_OPTIONAL
            )
    pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL: Final = _pool()
_CLASSES: Final[dict[str, Any]] = {
    name: message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))
    for name in (QUANTITY, SEMVER)
}


def kind_of(operand: Any) -> str | None:
    """:data:`QUANTITY` or :data:`SEMVER`; None for each other value of an expression."""
    name = getattr(getattr(operand, "DESCRIPTOR", None), "full_name", None)
    return name if name in _CLASSES else None


# ---- Quantities

_DECIMAL: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_NOTATION: Final = re.compile(r"[+-]?0*([0-9]*)(?:\.([0-9]*))?(.*)")


class Amount(NamedTuple):
    """A quantity.

    Attributes:
        exact: in whole units.
        integral: ``isInteger()`` in Kubernetes. It also depends on the notation: it is false for ``1.0`` and ``100Ti``.
        computed: it is a sum. In Kubernetes no value is equal to one, though a sum can be equal to a value.
    """

    exact: Fraction
    integral: bool
    computed: bool = False


def published(exact: Fraction) -> Amount:
    """An amount in a ResourceSlice. The API server writes it with the largest binary suffix, or as a decimal number."""
    if exact.denominator != 1:
        return Amount(exact, False)
    digits, thousands = abs(exact.numerator), 0
    while digits and digits % 1024 == 0:
        digits, thousands = digits // 1024, thousands + 1
    return Amount(exact, _fits_binary(str(digits), 10 * thousands))


@lru_cache(maxsize=4096)
def read_quantity(text: str) -> Amount:
    """A quantity in the notation of Kubernetes.

    As in Kubernetes, amounts finer than 1n are rounded away from zero, and amounts with a binary suffix end at 2^63-1.

    Raises:
        ValueError: it is not one.
    """
    if not is_quantity(text):
        raise ValueError(f"{text!r} is not a quantity")
    exact = Fraction(exact_quantity("quantity", text))
    rounded = Fraction(ceil(abs(exact) * _FINEST), _FINEST)
    whole, fraction, suffix = _NOTATION.fullmatch(text).groups(default="")  # type: ignore[union-attr]
    if suffix.endswith("i"):
        power = 10 * (1 + "KMGTPE".index(suffix[0]))
        integral = not fraction and _fits_binary(whole or "0", power)
        rounded = min(rounded, Fraction(_LARGEST))
    else:
        exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        digits = len(whole or "0") + len(fraction)
        integral = digits <= _MOST_DIGITS and exponent >= len(fraction) and rounded <= _LARGEST
    return Amount(rounded if exact >= 0 else -rounded, integral)


def _fits_binary(digits: str, power: int) -> bool:
    """Whether Kubernetes holds digits x 2^power as an integer: it estimates the number of digits of the product."""
    return 14 - len(digits) - power * 3 // 10 >= 0


def added(left: Amount, right: Amount) -> Amount:
    """The sum of two amounts."""
    exact = left.exact + right.exact
    if not right.exact or not left.exact:
        return Amount(exact, left.integral if not right.exact else right.integral, True)
    integral = left.integral and right.integral and abs(exact) <= _LARGEST
    return Amount(exact, integral, True)


def quantity(amount: Amount) -> Message:
    """An amount as a value of CEL."""
    made: Message = _CLASSES[QUANTITY](
        canonical=str(amount.exact), integral=amount.integral, computed=amount.computed
    )
    return made


def amount(message: Message) -> Amount:
    """The amount that a value of CEL holds."""
    return Amount(Fraction(message.canonical), message.integral, message.computed)


# ---- Semantic versions


def normalized(text: str) -> str:
    """A version with a leading ``v``, leading zeros or missing parts, in the form of semver.org.

    Raises:
        ValueError: a shortened version has a pre-release or build metadata.
    """
    parts = text.removeprefix("v").split(".", 2)
    parts = [_without_zeros(part) if len(part) > 1 else part for part in parts]
    if len(parts) < 3 and re.search(r"[+-]", parts[-1]):
        raise ValueError(f"{text!r} is too short for a pre-release or build metadata")
    return ".".join(parts + ["0"] * (3 - len(parts)))


def _without_zeros(part: str) -> str:
    kept = part.lstrip("0")
    return kept if kept[:1].isdecimal() else f"0{kept}"


def semver(version: Semver) -> Message:
    """A semantic version as a value of CEL."""
    made: Message = _CLASSES[SEMVER](canonical=str(version))
    return made


def version(message: Message) -> Semver:
    """The version that a value of CEL holds."""
    return read_semver(message.canonical)


# ---- Operators

_T: Final = cel.Type


def equal(left: Any, right: Any) -> bool:
    """``==``. In Kubernetes it is an error to compare a quantity or a version with a value of another kind, or with a sum."""
    kind = kind_of(left)
    comparable = kind is None or right is None or kind_of(right) == kind
    if not comparable or (kind is not None and right is not None and right.computed):
        raise no_overload()
    return same(left, right)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal; those of different kinds are not."""
    kind = kind_of(left)
    if kind is not None or kind_of(right) is not None:
        if kind != kind_of(right) or right.computed:
            return False
        return bool(left.canonical == right.canonical)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def within(element: Any, container: Any) -> bool:
    """``in``: whether an item is in a list, or a key in a map."""
    if not isinstance(container, list | dict):
        raise no_overload()
    return any(same(element, each) for each in container)


class _Evaluation(threading.local):
    """The evaluation of this thread. ``ended_by``: the error that ended it in Kubernetes; other errors can be absorbed by ``||``."""

    ended_by: str | None = None


_EVALUATION: Final = _Evaluation()


@contextmanager
def evaluation() -> Iterator[None]:
    """Evaluates one expression.

    Raises:
        EvaluationError: Kubernetes ends the evaluation with an error, whatever the value of the expression.
    """
    _EVALUATION.ended_by = None
    yield
    if _EVALUATION.ended_by is not None:
        raise EvaluationError(_EVALUATION.ended_by)


def _among(element: Any, constants: Any) -> bool:
    """Kubernetes keeps a list of constants as a hash table, and panics if it looks up a version."""
    if kind_of(element) == SEMVER:
        _EVALUATION.ended_by = f"hash of unhashable type {SEMVER}"
        raise ValueError(_EVALUATION.ended_by)
    return within(element, constants)


def _number(operand: Any) -> Any:
    if isinstance(operand, bool):
        raise no_overload()
    return operand


_ANY_TWO: Final = [(_T.BOOL, [_T.DYN, _T.DYN])]
EQUAL: Final = Function("equal", _ANY_TWO, equal, False)
UNEQUAL: Final = Function("unequal", _ANY_TWO, lambda a, b: not same(a, b), False)
WITHIN: Final = Function("within", _ANY_TWO, within, False)
AMONG: Final = Function("among", _ANY_TWO, _among, False)
NUMBER: Final = Function("number", [(_T.DYN, [_T.DYN])], _number, False)
"""The argument of a conversion to a number: the Go implementation converts no boolean."""
