"""Operators of CEL whose results in Kubernetes differ from those of the library for quantities, versions and booleans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from cel_expr_python import cel

from queuectl.cel import library_types
from queuectl.cel.expression import EvaluationError
from queuectl.cel.functions import Function, no_overload
from queuectl.cel.library_types import SEMVER

_T: Final = cel.Type


def equal(left: Any, right: Any) -> bool:
    """``==``. In Kubernetes it is an error to compare a quantity or a version with a value of another kind, or with a sum."""
    kind = library_types.kind_of(left)
    comparable = kind is None or right is None or library_types.kind_of(right) == kind
    if not comparable or (kind is not None and right is not None and right.computed):
        raise no_overload()
    return same(left, right)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal; those of different kinds are not."""
    kind = library_types.kind_of(left)
    if kind is not None or library_types.kind_of(right) is not None:
        if kind != library_types.kind_of(right) or right.computed:
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
    if library_types.kind_of(element) == SEMVER:
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
