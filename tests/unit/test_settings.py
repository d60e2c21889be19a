"""Settings: read from the environment, refused when wrong, and documented completely."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from queuectl.control.settings import Settings, SolverSettings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_nested_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUECTL_IN_FLIGHT", "7")
    monkeypatch.setenv("QUEUECTL_SOLVER__WINDOW", "50")
    settings = Settings()
    assert (settings.in_flight, settings.solver.window) == (7, 50)


@pytest.mark.parametrize(
    ("name", "value"),
    [("QUEUECTL_IN_FLIGHT", "0"), ("QUEUECTL_SOLVER__NOPE", "1"), ("QUEUECTL_LEASE_RENEW", "soon")],
)
def test_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError):
        Settings()


def test_every_setting_is_on_the_page_with_its_default_and_nothing_else_is() -> None:
    rows = [
        line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `QUEUE")
    ]
    listed = {row[1].strip(" `"): row[2].strip(" `") for row in rows}
    expected = {}
    for name, field in Settings.model_fields.items():
        if name != "solver":
            default = "host name and process id" if field.default_factory else str(field.default)
            expected["QUEUECTL_" + name.upper()] = default.replace("None", "unset")
    for name, field in SolverSettings.model_fields.items():
        expected["QUEUECTL_SOLVER__" + name.upper()] = str(field.default)
    assert listed == expected
