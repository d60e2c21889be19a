"""Optional dependencies of the package: which commands need them, and how to install them.

The base package is the client of the REST API. ``pyproject.toml`` lists the packages of each extra; the metadata of the
installed distribution repeats that list, and this module reads it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from queuectl.cli.errors import CommandFailed
from queuectl.distribution import DISTRIBUTION, install_command

_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+)(?:\[(?P<extras>[\w,.-]+)\])?.*;.*extra == ['\"](?P<extra>[\w.-]+)['\"]"
)


class Extra(StrEnum):
    """An extra of the distribution."""

    PLANNER = "planner"
    SERVER = "server"
    DEMO = "demo"
    MCP = "mcp"


def missing(extra: Extra) -> list[str]:
    """Names of the distributions of an extra that are not installed, sorted."""
    from importlib.metadata import PackageNotFoundError, distribution

    absent = []
    for name in sorted(set(_packages(extra))):
        try:
            distribution(name)
        except PackageNotFoundError:
            absent.append(name)
    return absent


def require(extra: Extra, what: str) -> None:
    """Check that an extra is installed.

    Args:
        extra: the extra.
        what: the part of queuectl that needs it, for the message.

    Raises:
        CommandFailed: it is not; the message names the install command.
    """
    if missing(extra):
        raise CommandFailed(f"{what} {install_hint(extra)}")


def install_hint(extra: Extra) -> str:
    """The end of a sentence, with the install command."""
    return f"needs the extra {extra}: {install_command(extra)}"


def _packages(extra: str) -> Iterator[str]:
    from importlib.metadata import requires

    for line in requires(DISTRIBUTION) or ():
        found = _REQUIREMENT.match(line)
        if found is None or found["extra"] != extra:
            continue
        if found["name"] == DISTRIBUTION:
            for nested in found["extras"].split(","):
                yield from _packages(nested)
        else:
            yield found["name"]
