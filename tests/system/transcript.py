"""Pages of the documentation as transcripts: a shell runs their commands as written, and its output is compared with the
output that the page shows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.codeblocks import Shown, transcript
from tests.support.pages import PAGES

ROOT: Final = Path(__file__).parents[2]
_MARK: Final = "--- ended with"
_VARYING: Final = (  # patterns that differ between runs, and their substitutes
    (r'"uid":\s*"[^"]*"', '"uid":"U"'),
    (r"[0-9a-f]{8}-[0-9a-f-]{27}", "U"),
    (r"\d{4}-\d\d-\d\d(T[\d:.]+Z| [\d:]+ UTC)", "T"),
    (r"\bb\d-r\d-h\d\b", "node"),
    (r"(?<![\w-])\d+(\.\d+)?(ms|[smhd])\b", "0s"),
    (r"(?<![\w.-])\d{1,3}(,\d{3})*(\.\d+)?(?![\w.-])|(?<![\w.-])\d+(\.\d+)?(?![\w.-])", "0"),
    (r"([:,])\s+", r"\1"),
    (r"\s+", " "),
)


def says(printed: str, shown: str) -> bool:
    """Whether a line of a page is in the output; numbers, times and uids can differ, and … stands for any text."""
    parts = re.split(r"…|\.\.\.", _masked(shown))
    return re.search(".*".join(map(re.escape, parts)), _masked(printed)) is not None


def _masked(text: str) -> str:
    for pattern, instead in _VARYING:
        text = re.sub(pattern, instead, text)
    return text.strip()


class Shell:
    """A bash in a folder with ``docs`` and ``deploy``. Each command ends after a few seconds at most."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        for name in ("docs", "deploy"):
            (folder / name).symlink_to(ROOT / name)
        self.folder = folder
        self._errors = folder / ".errors"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                ["bash", "--norc"],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        # Without a limit, a command that follows events would not end.
        self.type('set -o pipefail; curl() { command curl --max-time 5 "$@"; }')

    def type(self, line: str) -> tuple[int, str]:
        """Run a line. Returns its exit status and its output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\nprintf '\\n%s %s\\n' '{_MARK}' $?\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line_out in self._process.stdout:
            if line_out.startswith(_MARK):
                return int(line_out.rsplit(" ", 1)[1]), "".join(printed)
            printed.append(line_out)
        raise AssertionError(f"the shell ended at {line!r}: {self.errors}")

    @property
    def errors(self) -> str:
        """All output on standard error."""
        return self._errors.read_text()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@dataclass
class Page:
    """A page that is being typed; ``typed`` are the commands done."""

    name: str
    shell: Shell
    typed: set[Shown] = field(default_factory=set)

    @property
    def text(self) -> str:
        return PAGES[self.name].read_text()

    def take(self, begins: str) -> str:
        """The next command that begins so; it counts as typed."""
        return self._next(begins).command

    def write(self, name: str) -> None:
        """Run the command that writes a file."""
        self.type(f"cat > {name} ")

    def _next(self, begins: str) -> Shown:
        fitting = [s for s in transcript(self.text) if s.command.startswith(begins)]
        assert fitting, f"{self.name} has no command {begins!r}"
        shown = next((s for s in fitting if s not in self.typed), fitting[-1])
        self.typed.add(shown)
        return shown

    def type(
        self,
        begins: str,
        *,
        instead: Mapping[str, str] | None = None,
        status: int = 0,
        shows: bool = True,
        within: float = 0.0,
    ) -> str:
        """Run the next command that begins so, and compare its output.

        Args:
            begins: how it begins.
            instead: parts that have another value in this run, such as an ETag.
            status: how it ends.
            shows: false = do not compare the output: the page shows it elsewhere, or with values of another cluster.
            within: seconds for which the command is repeated until it prints this: what it reports changes by itself.
        """
        shown = self._next(begins)
        line = shown.command
        for written, meant in (instead or {}).items():
            assert written in line
            line = line.replace(written, meant)
        expected = shown.output if shows else ()
        deadline = time.monotonic() + within
        while True:
            ended, printed = self.shell.type(line)
            assert ended == status, f"{line}\nended with {ended}\n{printed}\n{self.shell.errors}"
            missing = [text for text in expected if text.strip() and not says(printed, text)]
            if not missing:
                return printed
            failure = "\n".join([f"{line} does not print", *missing, "but", printed])
            assert time.monotonic() < deadline, failure
            time.sleep(0.5)  # queuectl evaluates what it reports once a second or less often

    def end(self, *elsewhere: str) -> None:
        """Check that every command was run, except those that begin like one of these."""
        left = [s.command for s in transcript(self.text) if s not in self.typed]
        left = [command for command in left if not command.startswith(elsewhere)]
        assert left == [], f"{self.name}: no test runs {left}"


@contextmanager
def shell(environment: Mapping[str, str]) -> Iterator[Shell]:
    """A shell in a temporary folder, with this ``queuectl`` and the programs of the machine."""
    path = f"{Path(sys.executable).parent}:{environment.get('PATH', os.environ['PATH'])}"
    with tempfile.TemporaryDirectory() as folder:
        started = Shell(Path(folder), {**os.environ, **environment, "PATH": path})
        try:
            yield started
        finally:
            started.close()
