"""Functions that Kubernetes adds to CEL, for the environments of the library.

The C++ library finds an implementation by the name of the function and by the kinds of its arguments, and all messages are one
kind. There are therefore two environments: one checks an expression against the types that Kubernetes declares, the other
evaluates it with one implementation per name and number of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from cel_expr_python import cel

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
