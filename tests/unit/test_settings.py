"""Settings: read from the environment, refused when wrong, and documented completely."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from queuectl.cli.main import run
from queuectl.control.environment import OTHERS, settings_names, unknown_variables
from queuectl.control.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "settings.md"


def rows(section: int) -> dict[str, str]:
    """Variable to its second column, of the page's n-th table."""
    text = PAGE.read_text().split("\n## ")[section]
    cells = [line.split("|") for line in text.splitlines() if line.startswith("| `QUEUE")]
    return {row[1].strip(" `"): row[2].strip(" `") for row in cells}


def test_nested_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUECTL_IN_FLIGHT", "7")
    monkeypatch.setenv("QUEUECTL_SOLVER__WINDOW", "50")
    monkeypatch.setenv("QUEUECTL_UTILIZATION__NAMES__BUSY", "gpu_busy")
    settings = Settings()
    assert (settings.in_flight, settings.solver.window) == (7, 50)
    assert settings.utilization.names.busy == "gpu_busy"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUEUECTL_IN_FLIGHT", "0"),
        ("QUEUECTL_SOLVER__NOPE", "1"),
        ("QUEUECTL_LEASE_RENEW", "soon"),
        ("QUEUECTL_LEASE_RENEW", "5"),
        ("QUEUECTL_LEASE_DURATION", "9"),
    ],
)
def test_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError):
        Settings()


def test_every_setting_is_on_the_page_with_its_default_and_nothing_else_is() -> None:
    assert rows(0) == dict(defaults(Settings, "QUEUECTL_"))


def defaults(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """Every variable, and its default as the page writes it."""
    for name, field in model.model_fields.items():
        kind, variable = field.annotation, prefix + name.upper()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from defaults(kind, f"{variable}__")
        elif field.default_factory:
            yield variable, "host name and process id"
        else:
            yield variable, str(field.default).replace("None", "unset") or "unset"


def test_the_other_variables_are_on_the_page_too() -> None:
    assert rows(1).keys() == OTHERS.keys()


def test_the_known_variables_are_those_the_code_reads() -> None:
    """Every name the program's source speaks of; Settings' own are read by their fields."""
    for variable, module in OTHERS.items():
        path = ROOT / (module.replace(".", "/") + ".py")
        assert f'"{variable}"' in path.read_text()
    found = set()
    for path in (ROOT / "queuectl").rglob("*.py"):
        found |= set(re.findall(r"(?<!_)QUEUECTL_[A-Z][A-Z_]*[A-Z]", _code_of(path)))
    assert found <= settings_names() | OTHERS.keys()


def _code_of(path: Path) -> str:
    """Without the module that makes examples of what is unknown."""
    return "" if path.name == "environment.py" else path.read_text()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("QUEUECTL_IN_FLIHGT", "did you mean QUEUECTL_IN_FLIGHT?"),
        ("QUEUECTL_SOLVER_WINDOW", "did you mean QUEUECTL_SOLVER__WINDOW"),
        ("QUEUECTL_DATABASE_PG_BOUNCER", "did you mean QUEUECTL_DATABASE_PGBOUNCER"),
        ("queuectl_database_pgbouncer", "did you mean QUEUECTL_DATABASE_PGBOUNCER"),
        ("QUEUECTL_XYZZY", "settings.md"),
        ("QUEUECTL_", "settings.md"),
    ],
)
def test_a_variable_that_nothing_reads_is_named_with_what_may_be_meant(
    name: str, hint: str
) -> None:
    (sentence,) = unknown_variables({"PATH": "/bin", name: "1", "QUEUECTL_LISTEN": "x"})
    assert sentence.startswith(f"{name}: ")
    assert hint in sentence


def test_what_is_read_is_known_in_the_case_it_is_read_in() -> None:
    known = {*settings_names(), *OTHERS, "queuectl_in_flight", "QUEUECTL_SOLVER"}
    assert unknown_variables(dict.fromkeys(known, "1")) == []


def test_what_kubelet_says_of_services_is_no_setting() -> None:
    """A Service named queuectl-metrics puts these into every pod of its namespace."""
    ends = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "PORT", "PORT_8080_TCP",
            "PORT_8080_TCP_PROTO", "PORT_8080_TCP_PORT", "PORT_8080_TCP_ADDR")  # fmt: skip
    links = {f"QUEUECTL_METRICS_{end}": "10.0.0.1" for end in ends}
    assert unknown_variables(links) == []
    assert unknown_variables({**links, "QUEUECTL_METRICS_LISTENS": "x"})
    assert unknown_variables({"QUEUECTL_METRICS_PORT": "8080"})  # there is no such Service here


def test_serve_refuses_to_start_with_a_misspelled_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEUECTL_IN_FLIHGT", "7")
    monkeypatch.setattr("sys.argv", ["queuectl", "serve"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("QUEUECTL_IN_FLIHGT: nothing reads such a variable")
