"""The files that a command reads."""

from __future__ import annotations

import sys
from pathlib import Path

from queuectl.domain.errors import BadInput
from queuectl.objects.documents import Document, read_documents
from queuectl.objects.kinds import KINDS, JobKinds, with_declared
from queuectl.objects.kinds.declared import read_kinds


def read_objects(name: str) -> list[Document]:
    """The documents of a YAML or JSON file; ``-`` is stdin.

    Raises:
        BadInput: naming the file.
    """
    if name == "-":
        return read_documents(sys.stdin.buffer.read(), "stdin")
    return read_documents(read_bytes(name), name)


def declared_kinds(path: Path | None) -> JobKinds:
    """The job kinds, with those that a file declares.

    Raises:
        BadInput: naming the file, the kind and the field.
    """
    return KINDS if path is None else with_declared(read_kinds(read_bytes(str(path)), str(path)))


def read_bytes(name: str) -> bytes:
    """The content of a file.

    Raises:
        BadInput: naming the file.
    """
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror or error}") from None
