"""Settings: read from the environment, refused when wrong, and documented completely."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from queuectl.cli.main import run
from queuectl.control.settings import (
    PLAIN_VARIABLES,
    InvalidSettings,
    Settings,
    read_settings,
    settings_names,
    unknown_variables,
)
from queuectl.objects.configuration.owners import Owner
from tests.support.pages import PAGES

ROOT = Path(__file__).parents[2]
SETTINGS, _, OTHER_VARIABLES = PAGES["settings.md"].read_text().partition("\n## Other variables\n")

MADE_DEFAULTS = {
    "QUEUECTL_HOLDER": "host name and process id",
    "QUEUECTL_CONFIGURATION_OWNER": "database, or kueue in shadow mode",
}


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Variable to its default and its meaning, of all tables of a text."""
    cells = [line.split("|") for line in text.splitlines() if line.startswith("| `QUEUE")]
    return {row[1].strip(" `"): (row[2].strip(" `"), row[3].strip()) for row in cells}


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
        ("QUEUECTL_LEASE_DURATION", "inf"),
        ("QUEUECTL_HOLDER", ""),  # of a Lease that is free
    ],
)
def test_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "QUEUECTL_SHADOW",
            "",
            "QUEUECTL_SHADOW: must be true or false",
        ),
        (
            "QUEUECTL_LISTEN",
            "8000",
            "QUEUECTL_LISTEN: '8000' is not HOST:PORT, for example 127.0.0.1:8000 or [::1]:8000",
        ),
        (
            "QUEUECTL_METRICS_LISTEN",
            "",
            "QUEUECTL_METRICS_LISTEN: '' is not HOST:PORT, for example 127.0.0.1:8000 or [::1]:8000",
        ),
        ("QUEUECTL_SOLVER", "window=5", "QUEUECTL_SOLVER: 'window=5' is not JSON"),
        ("QUEUECTL_UTILIZATION__NAMES", "busy", "QUEUECTL_UTILIZATION: 'busy' is not JSON"),
    ],
)
def test_the_error_of_a_wrong_value_is_one_sentence_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettings) as error:
        read_settings()
    assert error.value.sentences == (sentence,)


def variables(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    """Each variable, with its field in the settings or in a part of them."""
    for name, field in model.model_fields.items():
        kind, variable = field.annotation, prefix + name.upper()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from variables(kind, f"{variable}__")
        else:
            yield variable, field


NUMBERS = [
    variable
    for variable, field in variables(Settings, "QUEUECTL_")
    if field.annotation in (float, float | None)
]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_each_number_is_finite(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettings, match=f"^{name}: must be a finite number$"):
        read_settings()


def test_in_shadow_mode_the_objects_of_kueue_own_the_configuration_unless_stated_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owners = [read_settings(shadow=shadow).configuration_owner for shadow in (False, True)]
    assert owners == [Owner.DATABASE, Owner.KUEUE]
    monkeypatch.setenv("QUEUECTL_SHADOW", "true")
    assert read_settings().configuration_owner is Owner.KUEUE
    monkeypatch.setenv("QUEUECTL_CONFIGURATION_OWNER", "database")
    assert read_settings().configuration_owner is Owner.DATABASE


def test_the_page_has_each_setting_with_its_default_and_its_meaning() -> None:
    assert rows(SETTINGS) == dict(described(Settings, "QUEUECTL_"))


def described(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Each variable, with its default in the format of the page, and its meaning."""
    for variable, field in variables(model, prefix):
        default = str(field.default).replace("None", "unset") or "unset"
        if field.default_factory:
            default = MADE_DEFAULTS[variable]
        yield variable, (default, field.description or "")


def test_the_page_has_the_other_variables() -> None:
    assert rows(OTHER_VARIABLES).keys() == PLAIN_VARIABLES.keys()


def test_the_known_variables_are_those_the_code_reads() -> None:
    """Every name the program's source speaks of; Settings' own are read by their fields."""
    for variable, module in PLAIN_VARIABLES.items():
        path = ROOT / (module.replace(".", "/") + ".py")
        assert f'"{variable}"' in path.read_text()
    found = set()
    for path in (ROOT / "queuectl").rglob("*.py"):
        found |= set(re.findall(r"(?<!_)QUEUECTL_[A-Z][A-Z_]*[A-Z]", path.read_text()))
    assert found <= settings_names() | PLAIN_VARIABLES.keys()


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
def test_an_unknown_variable_is_reported_with_a_suggestion(name: str, hint: str) -> None:
    (sentence,) = unknown_variables({"PATH": "/bin", name: "1", "QUEUECTL_LISTEN": "x"})
    assert sentence.startswith(f"{name}: ")
    assert hint in sentence


def test_a_variable_is_known_in_each_case_in_which_it_is_read() -> None:
    known = {*settings_names(), *PLAIN_VARIABLES, "queuectl_in_flight", "QUEUECTL_SOLVER"}
    assert unknown_variables(dict.fromkeys(known, "1")) == []


def test_variables_that_kubelet_sets_for_services_are_not_settings() -> None:
    """A Service named queuectl-metrics puts these into every pod of its namespace."""
    ends = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "PORT", "PORT_8080_TCP",
            "PORT_8080_TCP_PROTO", "PORT_8080_TCP_PORT", "PORT_8080_TCP_ADDR")  # fmt: skip
    links = {f"QUEUECTL_METRICS_{end}": "10.0.0.1" for end in ends}
    assert unknown_variables(links) == []
    assert unknown_variables({**links, "QUEUECTL_METRICS_LISTENS": "x"})
    assert unknown_variables({"QUEUECTL_METRICS_PORT": "8080"})  # no such Service exists here


def test_serve_refuses_to_start_with_a_misspelled_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEUECTL_IN_FLIHGT", "7")
    monkeypatch.setattr("sys.argv", ["queuectl", "serve"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("QUEUECTL_IN_FLIHGT: unknown variable")
