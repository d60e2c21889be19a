"""The pages of the documentation, by file name. Each name is used once, so that a page can move to another section."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"


def pages() -> dict[str, Path]:
    """README.md and each page under docs/.

    Raises ValueError if two pages have the same file name.
    """
    found = [README, *sorted((ROOT / "docs").rglob("*.md"))]
    named = {path.name: path for path in found}
    if len(named) < len(found):
        raise ValueError("two pages of the documentation have the same file name")
    return named


PAGES: Final = pages()

KIND_PAGES: Final = {
    "tfjob.md": "clicks",
    "xgboostjob.md": "trees",
    "paddlejob.md": "ernie",
    "jaxjob.md": "gemma",
    "jobset.md": "llama",
    "raycluster.md": "tune",
    "mpijob.md": "allreduce",
    "rayjob.md": "sweep",
    "trainjob.md": "qwen",
}
"""The pages of job kinds that have the same commands, and the names of their jobs."""
