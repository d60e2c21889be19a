"""Fast conversion of parameters: most values need none.

typer converts each value with pydantic, which takes 0.08 s to import. A value that already has the declared type, as a name
or a default, stays as it is. The others are converted by typer, which also reports what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import typer
from typer._coercion import RuntimeParam, build_runtime_param
from typer.core import TyperCommand


@dataclass(frozen=True)
class _Typed(RuntimeParam):
    """Converts a value only if its type differs from the declared one."""

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        if type(value) is self.annotation:
            return value
        try:
            return build_runtime_param(param.type_descriptor)._coerce_value(value, param, ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # a word of pydantic
            raise


class QuickCommand(TyperCommand):
    """A command that converts only the values that need it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does."""
        convert_only_if_needed(self.get_params(ctx))
        return super().parse_args(ctx, args)


def convert_only_if_needed(params: Iterable[Any]) -> None:
    """Let these parameters of a command keep values that have the declared type."""
    for param in params:
        described = param.type_descriptor
        param._runtime_param = _Typed(described.parameter_info, described.annotation)
