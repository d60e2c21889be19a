"""CEL expressions: compilation, evaluation, and the functions that Kubernetes adds.

The C++ library finds an implementation by the name of the function and by the kinds of its arguments, and all messages are one
kind. There are therefore two environments: one checks an expression against the types that Kubernetes declares, the other
evaluates it with one implementation per name and number of arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cel_expr_python import cel
from google.protobuf.json_format import MessageToDict

from queuectl.domain.errors import BadInput, QueuectlError
from queuectl.domain.words import shortened

# ---- Expressions

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
        except Exception as error:  # the library raises no class that only it uses
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
    except Exception as error:  # the library raises no class that only it uses
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


# ---- Functions

_T: Final = cel.Type


class Function(NamedTuple):
    """One function.

    Attributes:
        overloads: (result, arguments) as Kubernetes declares them.
        run: its implementation, with Python values. A ValueError or TypeError is the error of the expression.
        member: it is called on its first argument.
        on: the kind of the first argument at evaluation, for a name that the libraries of CEL have for another kind.
    """

    name: str
    overloads: Sequence[tuple[cel.Type, Sequence[cel.Type]]]
    run: Callable[..., Any]
    member: bool = True
    on: cel.Type = _T.DYN


def declared(functions: Iterable[Function]) -> cel.CelExtension:
    """For the environment that checks."""
    return cel.CelExtension(
        "kubernetes",
        [
            cel.FunctionDecl(
                function.name,
                [
                    cel.Overload(_id(function, number), result, list(taken), function.member)
                    for number, (result, taken) in enumerate(function.overloads)
                ],
            )
            for function in functions
        ],
    )


def implemented(functions: Iterable[Function]) -> cel.CelExtension:
    """For the environment that evaluates."""
    declarations = []
    for function in functions:
        lengths = sorted({len(taken) for _, taken in function.overloads})
        overloads = [
            cel.Overload(
                _id(function, length),
                _T.DYN,
                [function.on, *[_T.DYN] * (length - 1)],
                function.member,
                function.run,
            )
            for length in lengths
        ]
        declarations.append(cel.FunctionDecl(function.name, overloads))
    return cel.CelExtension("kubernetes", declarations)


def _id(function: Function, number: int) -> str:
    return f"{function.name.replace('.', '_')}_{number}"


def no_overload() -> ValueError:
    """The error of a call with arguments of other types than the function has."""
    return ValueError("no such overload")
