"""The Python of the documentation: blocks of a page, and code cells of a notebook."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.pages import EXAMPLES, PAGES

NOTEBOOK: Final = EXAMPLES / "notebook.ipynb"
PAGE: Final = PAGES["python.md"]
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> Sequence[str]:
    """The code of a page or of a notebook, in order."""
    if path.suffix == ".md":
        return _BLOCK.findall(path.read_text())
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(path: Path) -> None:
    """Run the code as one program, as a reader does who copies each block into the same session."""
    names: dict[str, Any] = {"__name__": "documentation"}
    for number, block in enumerate(blocks(path), 1):
        exec(compile(block, f"{path.name}, block {number}", "exec"), names)
    names["client"].close()
