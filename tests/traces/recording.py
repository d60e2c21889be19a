"""Writes the results of a run to a page of the documentation, with the date and the commit."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
END: Final = "<!-- end of results -->"


def record(page: Path, command: str, table: str) -> None:
    """Replace the results of a page, between the comment that names the command and the next end of results."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    today = datetime.now(UTC).date().isoformat()
    begin = f"<!-- results: {command} -->"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(END)
    page.write_text(
        f"{before}{begin}\n\nRun on {today} at commit {commit}.\n\n{table}\n{END}{after}"
    )
