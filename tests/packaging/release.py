"""``make release VERSION=X.Y.Z``: the commit and the tag of a release. The push of the tag publishes it.

The command changes nothing unless all conditions are met: the version is new, the branch is main, no file is changed, and the
changelog lists changes.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.packaging.versions import FORM, ROOT, set_version

BRANCH: Final = "main"
_UNRELEASED: Final = re.compile(r"^## Unreleased\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


class NotReleased(Exception):
    """A condition of a release is not met."""


@dataclass(frozen=True)
class Repository:
    """A clone of queuectl."""

    root: Path

    def git(self, *arguments: str) -> str:
        """The output of a git command."""
        command = ["git", "-C", str(self.root), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise NotReleased(f"git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip()

    @property
    def changelog(self) -> Path:
        return self.root / "CHANGELOG.md"

    def check(self, version: str) -> None:
        """Check the conditions of a release.

        Raises:
            NotReleased: the message names the first condition that is not met.
        """
        if not FORM.fullmatch(version):
            raise NotReleased(f"{version!r} is not a version of the form 1.2.3")
        tags = self.git("tag", "--list", "v*").splitlines()
        released = [tag.removeprefix("v") for tag in tags if FORM.fullmatch(tag.removeprefix("v"))]
        newest = max(released, key=_order, default=None)
        if newest is not None and _order(version) <= _order(newest):
            raise NotReleased(f"{version} is not newer than {newest}, which is released")
        if (branch := self.git("branch", "--show-current")) != BRANCH:
            raise NotReleased(f"the branch is {branch or 'detached'}, not {BRANCH}")
        if changed := self.git("status", "--porcelain"):
            raise NotReleased(f"the working tree has changes:\n{changed}")
        found = _UNRELEASED.search(self.changelog.read_text())
        if found is None or not found.group(1).strip():
            raise NotReleased("CHANGELOG.md: the section Unreleased is empty")

    def release(self, version: str, day: dt.date) -> None:
        """Date the section of the changelog, set the version, commit and tag."""
        self.check(version)
        text = self.changelog.read_text()
        title = f"## Unreleased\n\n## {version} - {day.isoformat()}\n"
        self.changelog.write_text(text.replace("## Unreleased\n", title, 1))
        set_version(version, self.root)
        self.git("commit", "--all", "--quiet", "--message", f"Release {version}")
        self.git("tag", "--annotate", f"v{version}", "--message", f"queuectl {version}")


def notes(version: str, root: Path = ROOT) -> str:
    """The section of a version in the changelog.

    Raises:
        NotReleased: it does not exist.
    """
    pattern = rf"^## {re.escape(version)} - \S+\n(.*?)(?=^## |\Z)"
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise NotReleased(f"CHANGELOG.md has no section {version}")
    return found.group(1).strip()


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def main(arguments: Sequence[str]) -> int:
    """``VERSION`` makes a release, ``notes VERSION`` prints its section of the changelog."""
    try:
        match arguments:
            case ["notes", version]:
                print(notes(version))
            case [version]:
                Repository(ROOT).release(version, dt.datetime.now(dt.UTC).date())
                print(f"To publish: git push --atomic origin {BRANCH} v{version}")
            case _:
                raise NotReleased("usage: make release VERSION=1.2.3")
    except NotReleased as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
