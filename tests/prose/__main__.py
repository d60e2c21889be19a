"""Checks the text of the project: ``python -m tests.prose [PATH ...]``.

It runs textlint with the rules of docs/style.md on the documentation and on the prose of the source files. In the documentation it
also finds commands with a prompt. It prints a line for each finding, and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from tests.prose.extract import READERS, extract
from tests.support.node import environment, node, node_tool

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
CHECKED: Final = (
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs",
    "queuectl",
    "migrations",
    "deploy",
    "tests",
)
_TERMS: Final = ("terms.yml", "phrases.yml")
_PROMPT: Final = re.compile(r"\s*\$ ")
_NOT_PROSE: Final = ("static/", "corpus/data/", "fixtures/", "unit/test_prose.py")


@dataclass(frozen=True, order=True)
class Finding:
    """A place where a text breaks a rule."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def files(paths: Iterable[str]) -> Iterator[Path]:
    """The files with prose among and under the paths, relative to the root of the project."""
    for name in paths:
        start = ROOT / name
        found = [start] if start.is_file() else sorted(start.rglob("*"))
        for path in found:
            if path.suffix in (".md", *READERS) and not any(
                part in str(path) for part in _NOT_PROSE
            ):
                yield path.relative_to(ROOT)


@dataclass(frozen=True)
class Sheet:
    """A file that textlint reads: the prose of the sources of one folder, one after the other."""

    path: Path
    starts: Sequence[int]
    """The first line of each source, from 1."""
    sources: Sequence[Path]

    def source(self, line: int) -> tuple[Path, int]:
        """The source of a line of the sheet, and the line there."""
        at = bisect_right(self.starts, line) - 1
        return self.sources[at], line - self.starts[at] + 1


def _sheets(paths: Iterable[Path], folder: Path) -> Iterator[Sheet]:
    """Pages as they are, and the prose of the other files of each folder as one sheet: textlint is slow on thousands of files."""
    for parent, group in groupby(sorted(paths, key=attrgetter("parent")), attrgetter("parent")):
        lines, starts, sources = list[str](), list[int](), list[Path]()
        for path in group:
            if path.suffix == ".md":
                yield Sheet(ROOT / path, [1], [path])
                continue
            for text in extract(ROOT / path):
                starts.append(len(lines) + 1)
                sources.append(path)
                lines += [*text.splitlines(), ""]
        if lines:
            made = folder / parent / "prose.md"
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text("\n".join(lines))
            yield Sheet(made, starts, sources)


def findings(paths: Iterable[Path]) -> list[Finding]:
    """Check some files, in the order of their names and lines.

    Raises:
        NoPackages: textlint cannot be installed.
        RuntimeError: textlint fails.
    """
    paths = list(paths)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sheets = {sheet.path: sheet for sheet in _sheets(paths, folder)}
        found = {_finding(sheets[path], message) for path, message in _messages(sheets, folder)}
    return sorted(found.union(*map(_prompts, paths)))


def _messages(checked: Collection[Path], folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The findings of textlint in files."""
    if not checked:
        return
    tool = node_tool(HERE)
    settings = json.loads((HERE / "textlintrc.json").read_text())
    settings["rules"]["prh"] |= {"rulePaths": [str(HERE / file) for file in _TERMS]}
    configuration, listed = folder / ".textlintrc.json", folder / "found.json"
    configuration.write_text(json.dumps(settings))
    program = tool / "node_modules" / "textlint" / "bin" / "textlint.js"
    command = [str(node()), str(program), "--config", str(configuration), "--format", "json"]
    ended = subprocess.run(
        [*command, "--output-file", str(listed), *sorted(map(str, checked))],
        cwd=tool,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode not in (0, 1) or ended.stderr.strip():
        raise RuntimeError(f"textlint: exit code {ended.returncode}: {ended.stderr.strip()}")
    for file in json.loads(listed.read_text()) if listed.exists() else []:
        for message in file["messages"]:
            yield Path(file["filePath"]), message


def _prompts(path: Path) -> Iterator[Finding]:
    """The commands of a page that cannot be copied, because a prompt precedes them."""
    if path.suffix == ".md":
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if _PROMPT.match(line):
                message = "a prompt: write the command alone, in a block shell"
                yield Finding(str(path), number, "prompt", message)


def _finding(sheet: Sheet, message: Mapping[str, Any]) -> Finding:
    path, line = sheet.source(message["line"])
    return Finding(str(path), line, message["ruleId"], " ".join(message["message"].split()))


def main() -> int:
    """Check the paths of the command line, or everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose")
    parser.add_argument("paths", nargs="*", default=CHECKED, metavar="PATH")
    parser.add_argument(
        "--count", action="store_true", help="print the number of findings in each folder only"
    )
    given = parser.parse_args()
    found = findings(files(given.paths))
    if given.count:
        folders = Counter("/".join(Path(f.path).parts[:2]) for f in found)
        print("\n".join(f"{count:6} {folder}" for folder, count in folders.most_common()))
    else:
        print("\n".join(map(str, found)), end="\n" * bool(found))
    print(f"prose: {len(found)} findings", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
