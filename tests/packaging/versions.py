"""The version of queuectl has one source, ``pyproject.toml``. This module knows each file that repeats it.

``make release`` writes the version to all of them, and a test compares them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FORM: Final = re.compile(r"\d+\.\d+\.\d+")
"""A version of a release. It means the same to Python (PEP 440) and to Helm (SemVer)."""


@dataclass(frozen=True)
class Place:
    """Files that repeat the version.

    Attributes:
        files: a glob below the root.
        before: a regular expression for the text before the version, on the same line.
    """

    files: str
    before: str

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(rf"({self.before})({FORM.pattern})\b", re.MULTILINE)


PLACES: Final = (
    Place("pyproject.toml", r"^version = \""),
    Place("uv.lock", r"^name = \"queuectl-k8s\"\nversion = \""),
    Place("deploy/**/*.yaml", r"\bqueuectl[:-]"),
    Place("deploy/**/*.yaml", r"\bapp\.kubernetes\.io/version: \"?"),
    Place("deploy/chart/Chart.yaml", r"^(?:appVersion|version): \"?"),
    Place("docs/how-to/install.md", r"\bnewTag: "),
    Place("README.md", r"\bqueuectl[:-]"),
    Place("docs/**/*.md", r"\bqueuectl[:-]"),
    Place("docs/**/*.md", r"\bnewTag: "),
    Place("docs/**/*.yaml", r"\bqueuectl[:-]"),
)
"""Text such as ``queuectl:0.1.0`` and ``queuectl-0.1.0.tar`` is always the current version."""


@dataclass(frozen=True)
class Mention:
    """The version in one file."""

    file: Path
    version: str


def version(root: Path = ROOT) -> str:
    """The version of the project."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def mentions(root: Path = ROOT) -> Iterator[Mention]:
    """The versions of all places."""
    for place in PLACES:
        for file in sorted(root.glob(place.files)):
            for found in place.pattern.finditer(file.read_text()):
                yield Mention(file.relative_to(root), found.group(2))


def set_version(new: str, root: Path = ROOT) -> None:
    """Write a version to all places."""
    for place in PLACES:
        for file in sorted(root.glob(place.files)):
            text = file.read_text()
            changed = place.pattern.sub(lambda found: found.group(1) + new, text)
            if changed != text:
                file.write_text(changed)
