"""Reads the objects of YAML files. The CRDs of the operators are 14 MB of YAML, so the parser is libyaml's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from queuectl.localcluster.client import Document


def objects(path: Path) -> list[Document]:
    """The documents of a file, without the empty ones."""
    documents: list[Any] = list(yaml.load_all(path.read_text(), yaml.CSafeLoader))
    return [one for one in documents if one]
