"""Quick start of the program: commands are imported, and parameters converted, only when necessary.

``queuectl --help`` and shell completion need only the name and the help line of each command. To import all commands would
take seconds, and fails where the extra of a command is not installed. typer converts each value with pydantic, which takes 0.08 s to
import. A value that already has the declared type, as a name or a default, stays as it is. The others are converted by typer, which
also reports what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import typer
from typer._coercion import RuntimeParam, build_runtime_param
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from queuectl.cli import extras, program
from queuectl.cli.errors import CommandFailed, exit_code
from queuectl.cli.help import OPTION_NAMES, complete_help, elsewhere_hint, unknown_command
from queuectl.cli.terminal import printable_output
from queuectl.client.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queuectl.cli.extras import Extra


_SERVER: Final = "--server"
"""The option of each command that calls the REST API."""
WHOLE_LINE: Final = "queuectl.whole_line"
"""Key in the metadata of a context: whether all words of the line were read. Otherwise an option of the connection can be missing."""


# ---- Parameters


@dataclass(frozen=True)
class _Typed(RuntimeParam):
    """Converts a value only if its type differs from the declared one."""

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        if type(value) is self.annotation:
            return value
        try:
            return build_runtime_param(param.type_descriptor)._coerce_value(value, param, ctx)
        except typer.BadParameter as error:
            error.message = _plain(error.message, value)
            raise


def _plain(message: str, text: object) -> str:
    """A message of pydantic in the words of the other errors, with the value."""
    required = message.removeprefix("Input should be ")
    if required == message:
        return message.removeprefix("Value error, ")
    kind = required.partition(",")[0] if required.startswith("a ") else ""
    return f"{text!r} is not {kind}" if kind else f"{text!r} must be {required}"


class QuickCommand(TyperCommand):
    """A command that converts only the values that need it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does. Each error has the context, so that its message can name the command."""
        convert_only_if_needed(self.get_params(ctx))
        if ctx.resilient_parsing:
            ctx.meta[WHOLE_LINE] = self._reads(args)
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            vars(error)["ctx"] = vars(error).get("ctx") or ctx
            raise

    def _reads(self, args: list[str]) -> bool:
        """Whether these words before the one that is completed are valid. Completion stops to read at an option that is not."""
        try:
            self.make_parser(typer.Context(self)).parse_args([*args, "word"])
        except typer.TyperException:
            return False
        return True

    def invoke(self, ctx: Any) -> Any:
        """As typer does. A workload that is not in this namespace is named where it is."""
        try:
            return super().invoke(ctx)
        except RequestRefused as error:
            hint = elsewhere_hint(ctx, error)
            if not hint:
                raise
            raise CommandFailed(f"{error}; {hint}", exit_code(error)) from error


def convert_only_if_needed(params: Iterable[Any]) -> None:
    """Let these parameters of a command keep values that have the declared type."""
    for param in params:
        described = param.type_descriptor
        param._runtime_param = _Typed(described.parameter_info, described.annotation)


class Reader(StrEnum):
    """For whom a command is: the title of its section in the help."""

    SUBMITTER = "Run jobs (submitter)"
    LEAD = "Manage a queue (team lead)"
    ADMINISTRATOR = "Install and configure (platform administrator)"
    ON_CALL = "Diagnose and recover (on call)"
    NEWCOMER = "Try queuectl on this machine"
    ANYONE = "This program"


# ---- Commands


class LazyCommand:
    """Where a command is defined, and its place in the help.

    Attributes:
        target: ``module:attribute``, a function or a Typer application.
        text: its help line.
        reader: the section of the help.
        extra: the extra that it needs; None = the base package is enough.
        own_text: it prints no text of a server, a cluster or a file, and its terminal can show all of it.
    """

    def __init__(
        self,
        target: str,
        text: str,
        reader: Reader,
        *,
        extra: Extra | None = None,
        own_text: bool = False,
    ) -> None:
        self.target: Final = target
        self.text: Final = text
        self.reader: Final = reader
        self.extra: Final = extra
        self.own_text: Final = own_text

    def load(self, name: str) -> TyperCommand | TyperGroup:
        """Import the command, under this name.

        Raises:
            CommandFailed: its extra is not installed.
        """
        if self.extra is not None:
            extras.require(self.extra, f"`{program.called()} {name}`")
        module, _, attribute = self.target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            application = typer.Typer()
            application.command(name, cls=QuickCommand)(found)
            found = application
        found._add_completion = False
        found.rich_markup_mode = None  # rich takes 0.1 s to import, for frames around the help
        command = get_command(found)
        assert isinstance(command, TyperCommand | TyperGroup)
        command.name = name
        _complete(command, name)
        return command


def _complete(command: TyperCommand | TyperGroup, path: str) -> None:
    """Add -h, the connection options and the end of the help to a command, or to each command of a group. ``path``: its words."""
    command.context_settings = {**command.context_settings, "help_option_names": OPTION_NAMES}
    if isinstance(command, TyperGroup):
        for name, member in command.commands.items():
            assert isinstance(member, TyperCommand | TyperGroup)
            _complete(member, f"{path} {name}")
        return
    calls_server = any(_SERVER in param.opts for param in command.params)
    if calls_server:
        from queuectl.cli.connection import connected

        connected(command)
    complete_help(command, path, calls_server=calls_server)


class _Deferred(TyperCommand):
    """A placeholder in listings; it loads the command when arguments are to be parsed."""

    def __init__(self, name: str, mount: LazyCommand) -> None:
        super().__init__(name, help=mount.text, rich_markup_mode=None)
        self.mount: Final = mount

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Parse with the real command. Completion offers nothing where the extra of the command is missing."""
        try:
            command = self.mount.load(self.name or "")
        except CommandFailed:
            if extra.get("resilient_parsing"):
                return super().make_context(info_name, args, *more, **extra)
            raise
        context = command.make_context(info_name, args, *more, **extra)
        if not self.mount.own_text:
            context.with_resource(printable_output())
        return context


def lazy_group(mounts: Mapping[str, LazyCommand], first: Sequence[str]) -> type[TyperGroup]:
    """A group class for ``typer.Typer(cls=...)``.

    Args:
        mounts: its commands, in the order of the help.
        first: the commands that it shows when it is called without arguments.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, *args: Any, **extra: Any) -> None:
            super().__init__(*args, **extra)
            self.commands = {name: _Deferred(name, mount) for name, mount in mounts.items()}
            self.context_settings = {**self.context_settings, "help_option_names": OPTION_NAMES}

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Without arguments, show the first commands and end with 0."""
            if not args and not ctx.resilient_parsing:
                typer.echo(self._first_commands(ctx))
                ctx.exit()
            convert_only_if_needed(self.get_params(ctx))
            return super().parse_args(ctx, args)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """Name the nearest right thing if the command does not exist."""
            if args[0] not in self.commands and not args[0].startswith("-"):
                ctx.fail(unknown_command(args[0], self.commands))
            return super().resolve_command(ctx, args)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """A section for each reader."""
            width = max(map(len, self.list_commands(ctx)))
            for reader in Reader:
                rows = [(n.ljust(width), m.text) for n, m in mounts.items() if m.reader is reader]
                if rows:
                    with formatter.section(reader):
                        formatter.write_dl(rows)

        def _first_commands(self, ctx: Any) -> str:
            formatter = ctx.make_formatter()
            formatter.write_text(self.help or "")
            called = ctx.command_path
            with formatter.section("First commands"):
                formatter.write_dl([(f"{called} {name}", mounts[name].text) for name in first])
            with formatter.section("More"):
                formatter.write_dl(
                    [
                        (f"{called} --help", "List all commands."),
                        (f"{called} COMMAND --help", "Show the options of a command."),
                    ]
                )
            return str(formatter.getvalue().rstrip("\n"))

    return LazyGroup
