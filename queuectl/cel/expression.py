"""Compiled expressions, and the errors of compilation and evaluation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from cel_expr_python import cel
from google.protobuf.json_format import MessageToDict

from queuectl.domain.errors import BadInput, QueuectlError
from queuectl.domain.words import shortened

_FIRST: Final = re.compile(
    r"ERROR: <input>:[0-9]+:[0-9]+: (.*?)(?: \(in container ''\))?$", re.MULTILINE
)
"""The first of the errors that the library lists, without its position."""
_LONGEST_REASON: Final = 500
"""Characters. The library repeats parts of the expression."""


class EvaluationError(QueuectlError):
    """The value of an expression is an error, for example because a field is missing."""


class CompiledExpression:
    """One compiled expression."""

    def __init__(self, compiled: cel.Expression) -> None:
        self._compiled = compiled

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """Its value, as a JSON value.

        Args:
            variables: a value for each variable of the environment.

        Raises:
            EvaluationError: the value is an error, or the library cannot evaluate the expression.
        """
        try:
            found = self._compiled.eval(data=dict(variables))
        except Exception as error:  # the library has no class of its own
            raise EvaluationError(str(error)) from error
        if found.type() == cel.Type.ERROR:
            raise EvaluationError(str(found.value()))
        return _plain(found.plain_value())


def compiled(environment: cel.Env, source: str, *, types: bool = True) -> cel.Expression:
    """The expression.

    Args:
        environment: its variables and functions.
        source: the text.
        types: check the types.

    Raises:
        BadInput: it is not valid.
    """
    try:
        return environment.compile(source, disable_check=not types)
    except Exception as error:  # the library has no class of its own
        found = _FIRST.search(str(error))
        reason = shortened(found[1] if found else str(error), _LONGEST_REASON)
        raise BadInput(f"CEL: {reason}: {shortened(source, _LONGEST_REASON)}") from error


def _plain(outcome: Any) -> Any:
    if isinstance(outcome, list):
        return [_plain(each) for each in outcome]
    return _whole(MessageToDict(outcome)) if hasattr(outcome, "DESCRIPTOR") else outcome


def _whole(outcome: Any) -> Any:
    """The JSON value without ``.0``, which the API server does not accept in an integer. All numbers of a message are floats."""
    if isinstance(outcome, dict):
        return {key: _whole(each) for key, each in outcome.items()}
    if isinstance(outcome, list):
        return [_whole(each) for each in outcome]
    return int(outcome) if isinstance(outcome, float) and outcome.is_integer() else outcome
