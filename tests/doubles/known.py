"""The job kinds that the doubles know: the built-in ones, and the declared one of docs/examples/own-kind."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from queuectl.objects.kinds import JobKinds, descriptions_of, with_declared
from queuectl.objects.kinds.declared import read_kinds

_FILE: Final = Path(__file__).parents[2] / "docs" / "examples" / "own-kind" / "job-kinds.yaml"
KNOWN: Final[JobKinds] = with_declared(read_kinds(_FILE.read_text(), _FILE.name))
DESCRIBED: Final = descriptions_of(KNOWN)
"""The descriptions of all of them but the Job."""
