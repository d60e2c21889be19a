"""Filters of lists that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuectl.cli import complete
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.objects.configuration.config_kinds import PREFIX

if TYPE_CHECKING:
    from queuectl.client.client import Client

Selector = Annotated[
    str | None,
    typer.Option(
        "--selector",
        "-l",
        metavar="SELECTOR",
        help="Only workloads whose job has these labels, as with kubectl: team=nlp, or 'stage in (train,eval),!trial'.",
        autocompletion=complete.selectors,
    ),
]


def states_of(plural: str, typed: Sequence[str]) -> list[str]:
    """The states of an option that is repeated or has commas, in any case of letters.

    Args:
        plural: the kind of the list, whose objects have these states.
        typed: the values of the option.

    Raises:
        CommandFailed: a state does not exist.
    """
    if not typed:
        return []
    from queuectl.domain.commands import CommandState  # slow, and rarely needed
    from queuectl.domain.ledger import State

    known: Any = CommandState if plural == "commands" else State
    names = {state.value.lower(): state.value for state in known}
    states = []
    for word in (part.strip() for option in typed for part in option.split(",")):
        if word.lower() not in names:
            message = f"--state: unknown state {word!r}; the states are {', '.join(names.values())}"
            raise CommandFailed(message, Exit.BAD_INPUT)
        states.append(names[word.lower()])
    return states


def caller_of(client: Client) -> str:
    """The name of the user, as the server knows it. Raises CommandFailed."""
    session = client.get(f"{PREFIX}/session")
    if not session["authenticated"]:
        raise CommandFailed(
            "--mine: this server does not authenticate its callers; use --user USER", Exit.BAD_INPUT
        )
    return str(session["name"])
