"""Extras: what they need is read from the package itself, and a missing one is named."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from queuectl.cli import extras
from queuectl.cli.commands import COMMANDS
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.extras import Extra
from queuectl.distribution import DISTRIBUTION

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def listed(extra: str) -> set[str]:
    """The packages of an extra and of the extras that it includes, by pyproject.toml."""
    found = set()
    for line in PROJECT["optional-dependencies"][extra]:
        needed = Requirement(line)
        if needed.name == DISTRIBUTION:
            found |= {name for nested in needed.extras for name in listed(nested)}
        else:
            found.add(needed.name)
    return found


def without(*names: str) -> object:
    """``distribution`` where these are not installed."""
    real = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        if name in names:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    return distribution


def test_the_extras_are_those_of_the_project() -> None:
    assert {*Extra} == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("extra", Extra)
def test_an_extra_is_missing_when_one_of_its_packages_is(
    extra: Extra, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert extras.missing(extra) == []
    for name in listed(extra):
        monkeypatch.setattr(importlib.metadata, "distribution", without(name))
        assert extras.missing(extra) == [name]
        monkeypatch.undo()


def test_a_command_of_a_missing_extra_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", without("ortools"))
    monkeypatch.setattr("sys.argv", ["queuectl", "plan"])
    with pytest.raises(CommandFailed) as failed:
        COMMANDS["plan"].load("plan")
    assert (
        str(failed.value)
        == "`queuectl plan` needs the extra planner: pip install '.[planner]' in a clone of queuectl"
    )
    assert failed.value.code is Exit.FAILURE


def leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    members = getattr(command, "commands", None)
    for name, member in (members or {}).items():
        yield from leaves(member, f"{words} {name}")
    if members is None:
        yield words, command


def test_each_command_that_calls_the_server_has_the_options_of_the_connection() -> None:
    """Only these need an extra: the base package is the client."""
    extended = set()
    for name, each in COMMANDS.items():
        for words, command in leaves(each.load(name), name):
            options = {option for param in command.params for option in param.opts}
            calls = "--server" in options
            if calls and each.extra is not None:
                extended.add(words)
            shared = {"--ca-file", "--tls-server-name", "--token-file", "--as-serviceaccount"}
            assert options & shared == (shared if calls else set()), words
            cluster = {"--kubeconfig", "--context"} & options
            assert len(cluster) == (2 if calls or words == "kueue hand-over" else 0), words
    assert extended == {"simulate", "advise", "mcp"}
