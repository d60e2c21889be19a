"""The refusal of options that exclude each other."""

from __future__ import annotations

import pytest

from tests.support.cli import queuectl_with


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("logs", "a/b", "--rank", "0", "--all-ranks"), "--rank and --all-ranks"),
        (("logs", "a/b", "--previous", "--follow"), "--previous and --follow"),
        (("priority", "a/b", "--reset", "--until", "2h"), "--until and --reset"),
        (("demo", "--keep", "--down"), "--keep and --down"),
    ],
)
def test_options_that_exclude_each_other_are_named(
    arguments: tuple[str, ...],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = queuectl_with(monkeypatch, capsys, *arguments)
    assert (refused.code, f"{named} exclude each other" in refused.err) == (2, True), refused
