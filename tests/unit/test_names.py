"""The check of names finds those without a meaning."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.names import __main__ as check

LONG = "    print(1)\n" * 10


def names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, file: str = "a.py"
) -> list[str]:
    monkeypatch.setattr(check, "ROOT", tmp_path)
    (tmp_path / file).write_text(source)
    return [f"{f.kind} {f.name}" for f in check.findings(tmp_path / file)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def found(): ...", "function found"),
        ("class Value: ...", "class Value"),
        ("KNOWN = 1", "constant KNOWN"),
        ("class A:\n    data: int = 1", "attribute A.data"),
        ("class A:\n    def made(self): ...", "function A.made"),
        ("def f(given): ...", "parameter f.given"),
        ("def _f(*, other=1): ...", "parameter _f.other"),
        ("def f():\n    def g(one): ...", "parameter f.g.one"),
        (f"def f():\n    result = 1\n{LONG}    return result", "local f.result"),
        (f"def f(x):\n    match x:\n        case [*rest]:\n{indent(LONG, '        ')}            return rest", "local f.rest"),
        ("def labelled(): ...", "function labelled"),
        ("def f(colour): ...", "parameter f.colour"),
    ],
)  # fmt: skip
def test_a_name_without_a_meaning_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, expected: str
) -> None:
    assert names(tmp_path, monkeypatch, source) == [expected]


@pytest.mark.parametrize(
    "source",
    [
        "def _found(): ...",
        "class _Value:\n    data: int = 1",
        "class A(View):\n    items: int = 1",
        "class A:\n    def __eq__(self, other): ...",
        "def f():\n    result = 1\n    return result",
        f"def f(x):\n    a = [one for one in x]\n{LONG}    return [one for one in a]",
        f"def f(x):\n    g = lambda value: value\n{LONG}    return g(x)",
        "NAMES = {one: 1 for one in ()}",
    ],
)
def test_other_names_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    assert names(tmp_path, monkeypatch, source) == []


def test_a_module_has_a_name_with_a_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(tmp_path, monkeypatch, "", "values.py") == ["module values"]
