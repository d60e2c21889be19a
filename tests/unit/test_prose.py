"""The linter of text finds what docs/style.md forbids, and names the line of the source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.prose.__main__ import HERE, Finding, findings
from tests.prose.extract import READERS, laid_out
from tests.support.pages import PAGES

AVOIDED: Final = re.compile(r"^\| ([a-z][^|]*?) \| [^|]+ \|$", re.MULTILINE)


def rules() -> list[re.Pattern[str]]:
    """The patterns of terms.yml."""
    given = [rule["pattern"] for rule in yaml.safe_load((HERE / "terms.yml").read_text())["rules"]]
    split = [pattern.removeprefix("/").rpartition("/") for pattern in given]
    return [re.compile(body, re.IGNORECASE if "i" in flags else 0) for body, _, flags in split]


def avoided() -> list[str]:
    """The words in the first column of the table "Words to avoid"."""
    table = PAGES["style.md"].read_text().partition("## Words to avoid")[2].partition("\n## ")[0]
    cells = [cell for cell in AVOIDED.findall(table) if cell != "instead of"]
    return [
        re.sub(r" \(.*\)", "", word) for cell in cells for word in re.split(r", (?![^(]*\))", cell)
    ]


@pytest.mark.parametrize("word", avoided())
def test_each_word_to_avoid_has_a_rule(word: str) -> None:
    assert any(rule.search(f"It {word} be so") for rule in rules())


@pytest.mark.parametrize(
    ("suffix", "source", "line", "word"),
    [
        (".py", '"""First line.\n\nA gang is told.\n"""\n', 3, "told"),
        (".py", "x = 1\n\ny = 2  # mends nothing\n", 3, "mends"),
        (".py", 'x = (\n    f"nobody {x} waits here"\n)\n', 2, "nobody"),
        (".py", "\ndef test_nobody_waits() -> None: ...\n", 2, "nobody"),
        (".py", 'x = f"{a}{b}: nobody waits for {c}{d}"\n', 1, "`x`: nobody waits for `x`"),
        (".html", "<p>\n  {# no text #}Whoever {{ x }} waits\n</p>\n", 2, "Whoever"),
        (".html", '<a\n aria-label="Place it anew">x</a>\n', 2, "anew"),
        (".yaml", "a: 1\nb: 2  # stands here\n", 2, "stands"),
        (".yaml", "a:\n  summary: told again\n", 2, "told"),
    ],
)
def test_prose_keeps_the_line_of_its_source(suffix: str, source: str, line: int, word: str) -> None:
    texts = [laid_out(fragments).splitlines() for fragments in READERS[suffix](source)]
    assert [t for t in texts if len(t) >= line and word in t[line - 1]]


@pytest.mark.parametrize(
    "source",
    ["x = 'SELECT nobody FROM somebody WHERE told'\n", "x = 'nobody'\n", "x = 1  # noqa: told\n"],
)
def test_queries_identifiers_and_directives_are_not_prose(source: str) -> None:
    assert "".join(map(laid_out, READERS[".py"](source))).strip() == ""


def test_a_finding_names_the_file_the_line_and_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text('"""One."""\n')
    (tmp_path / "two.py").write_text('"""Two.\n\nIt is mended.\n"""\n')
    (tmp_path / "page.md").write_text(
        "# Page\n\nIt waits, as `told`.\n\nNobody waits.\n\n    $ kubectl version\n\nIt is no Job.\n"
    )
    monkeypatch.setattr("tests.prose.__main__.ROOT", tmp_path)
    found = findings(path.relative_to(tmp_path) for path in sorted(tmp_path.iterdir()))
    assert found == [
        Finding("page.md", 5, "prh", 'Nobody => the actor or the object, for example "no gang"'),
        Finding("page.md", 7, "prompt", "a prompt: write the command alone, in a block shell"),
        Finding("page.md", 9, "prh", "is no => does not count as, is not a"),
        Finding("two.py", 3, "prh", "mended => fix, repair"),
    ]
