"""The options of the server commands for their log."""

from __future__ import annotations

import pytest

from queuectl.cli.errors import Exit
from tests.support.cli import queuectl_with


@pytest.mark.parametrize("command", ["serve", "webhook"])
@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--log-format", "'auto', 'json', 'console'"),
        ("--log-level", "'debug', 'info', 'warning', 'error'"),
    ],
)
def test_an_unknown_value_of_an_option_of_the_log_is_refused(
    command: str,
    option: str,
    values: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = queuectl_with(monkeypatch, capsys, command, option, "loud")
    assert result.code == Exit.BAD_INPUT
    assert option in result.err
    assert f"'{option}': 'loud' is not one of {values}" in result.err
