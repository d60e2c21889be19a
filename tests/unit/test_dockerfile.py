"""The Dockerfile agrees with the project it packs. `make test-image` runs its steps."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = [
    line
    for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    if line and not line.startswith("#")
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def steps(word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in LINES if line.startswith(word + " ")]


COPIED = [
    source
    for step in steps("COPY")
    if not step.startswith("--from")
    for source in step.split()[:-1]
]


@pytest.mark.parametrize("source", COPIED)
def test_what_is_copied_exists_and_is_not_ignored(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in IGNORED


def test_nothing_else_reaches_the_build() -> None:
    assert IGNORED[1] == "*"
    assert {line[1:] for line in IGNORED if line.startswith("!")} == set(COPIED)


def test_all_that_the_wheel_needs_is_copied() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], "pyproject.toml", "uv.lock"}
    needed |= {PROJECT["project"]["readme"]}
    needed |= {Path(name).parts[0] for name in PROJECT["project"]["license-files"]}
    assert needed <= set(COPIED)


def test_uv_is_the_one_of_the_lock() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    [locked] = [one["version"] for one in lock["package"] if one["name"] == "uv"]
    pinned = re.findall(r"uv==(\S+)", " ".join(steps("RUN")))
    assert pinned == [locked]


def test_the_image_has_the_server_without_tests_and_its_database_without_python() -> None:
    [server] = [step for step in steps("RUN") if step.startswith("uv sync")]
    [database] = [step for step in steps("RUN") if step.startswith("UV_PROJECT_ENVIRONMENT=")]
    for step in (server, database):
        assert "--frozen" in step
        assert "--no-dev" in step
        assert "--all-extras" not in step
    assert re.findall(r"--(?:extra|only-group) \S+", server) == ["--extra server"]
    assert re.findall(r"--(?:extra|only-group) \S+", database) == ["--only-group database"]
    assert "COPY --from=database /opt/postgres /opt/postgres" in LINES
    assert "tests" not in COPIED


def test_it_runs_as_an_unprivileged_user_and_its_entry_point_is_the_command() -> None:
    assert steps("USER") == ["65532:65532"]
    assert steps("ENTRYPOINT") == ['["queuectl"]']
    assert "queuectl" in PROJECT["project"]["scripts"]


def test_all_stages_have_the_base_of_the_argument_which_is_a_python_we_support() -> None:
    assert [step.split()[0] for step in steps("FROM")] == [
        "${BASE}",
        "dependencies",
        "dependencies",
        "${BASE}",
    ]
    [argument] = steps("ARG")
    [version] = re.findall(r"BASE=python:3\.(\d+)-slim", argument)
    assert f"Programming Language :: Python :: 3.{version}" in PROJECT["project"]["classifiers"]
