"""A command group whose commands are imported when they are called, not when the program starts.

``queuectl --help`` and a shell's completion of command names need only a name and a line of help each; importing all
commands for that would cost seconds (a Kubernetes client, SQLAlchemy, a solver).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

PANEL_CLIENT = "Talk to a running queuectl"
PANEL_SERVER = "Run"
PANEL_OFFLINE = "Without a server"


class LazyCommand:
    """Where a command comes from: ``module:attribute``, a function or a Typer application."""

    def __init__(self, target: str, text: str, panel: str) -> None:
        self.target: Final = target
        self.text: Final = text
        self.panel: Final = panel

    def load(self, name: str) -> TyperCommand | TyperGroup:
        """Import it and make it a command of this name."""
        module, _, attribute = self.target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            application = typer.Typer(add_completion=False)
            application.command(name)(found)
            found = application
        found._add_completion = False
        command = get_command(found)
        assert isinstance(command, TyperCommand | TyperGroup)
        command.name = name
        if self.panel == PANEL_CLIENT:
            from queuectl.cli.connection import connected

            connected(command)
        return command


class _Deferred(TyperCommand):
    """Stands in for a command in listings; becomes it when arguments are to be parsed."""

    def __init__(self, name: str, mount: LazyCommand) -> None:
        super().__init__(name, help=mount.text, rich_help_panel=mount.panel)
        self._mount = mount

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Parse with the real command."""
        return self._mount.load(self.name or "").make_context(info_name, args, *more, **extra)


def lazy_group(mounts: Mapping[str, LazyCommand]) -> type[TyperGroup]:
    """A group class for ``typer.Typer(cls=...)`` that offers exactly these commands, in this order."""

    class LazyGroup(TyperGroup):
        def __init__(self, *args: Any, **extra: Any) -> None:
            super().__init__(*args, **extra)
            self.commands = {name: _Deferred(name, mount) for name, mount in mounts.items()}

    return LazyGroup
