"""The pages of the documentation, by file name. Each name is used once, so that a page can move to another section."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from queuectl.objects.kinds import KINDS

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

EXAMPLES: Final = ROOT / "docs" / "examples"


def _kind_pages() -> Iterator[tuple[str, str]]:
    for kind in KINDS:
        page, example = f"{kind.lower()}.md", f"docs/examples/{kind.lower()}.yaml"
        if page in PAGES and f"\nkubectl create -f {example}\n" in PAGES[page].read_text():
            *_, job = yaml.safe_load_all((ROOT / example).read_text())
            yield page, job["metadata"]["name"]


KIND_PAGES: Final = dict(_kind_pages())
"""The pages of job kinds that create the example of their kind, and the names of the jobs."""
