"""``kubectl_complete-queuectl``: completion of ``kubectl queuectl``.

kubectl runs the program of this name for the completion of its plugin, with the words after ``kubectl queuectl``. It expects
one candidate a line, and in the last line a colon and a directive of cobra, the library of kubectl's commands.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from typing import Final

from queuectl.cli import program
from queuectl.cli.main import app
from queuectl.domain.words import printable

_COMPLETE_FILES: Final = 0  # cobra.ShellCompDirectiveDefault
_NO_FILES: Final = 4  # cobra.ShellCompDirectiveNoFileComp


def complete() -> None:
    """Print the candidates for the last word of the command line; without candidates, the shell offers files."""
    words = [program.NAME, *(sys.argv[1:] or [""])]
    os.environ |= {
        "_QUEUECTL_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        app(prog_name=program.NAME)
    candidates = [line for line in printed.getvalue().splitlines() if line]
    sys.stdout.writelines(f"{printable(each)}\n" for each in candidates)
    sys.stdout.write(f":{_NO_FILES if candidates else _COMPLETE_FILES}\n")
