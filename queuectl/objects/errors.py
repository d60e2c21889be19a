"""The classes of errors in documents.

An error in a user's job must not stop the watch: the kinds turn :class:`RequestError` into ``JobRecord.error``. A document of
the configuration, or of ``queuectl plan -f``, is refused with :class:`DocumentError`.

A reader of an object of the API server raises :data:`UNREADABLE`, and no other error for any bytes
(``tests/cluster/test_reader_contract.py``), except RecursionError for a document that nests deeper than msgspec can decode: see
:mod:`queuectl.cluster.stream`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from queuectl.domain.errors import BadInput, bounded

_PATH: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<field>.*)`$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>.*)`$", re.DOTALL)


class RequestError(ValueError):
    """The request of a job can never be fulfilled. The message is a sentence with field and value.

    ``unsupported`` marks a constraint that placement does not support, in contrast to an error of the user.
    """

    def __init__(self, message: str, *, unsupported: bool = False) -> None:
        super().__init__(bounded(message))
        self.unsupported = unsupported

    def under(self, path: str, separator: str = ": ") -> Self:
        """The same error, with the path of the surrounding object."""
        return type(self)(f"{path}{separator}{self}", unsupported=self.unsupported)


UNREADABLE: Final = (msgspec.MsgspecError, RequestError)
"""The errors of a reader. The API server refuses nearly all objects with such an error."""


class under:  # noqa: N801 - it is used as a function
    """Adds a path to errors that are raised inside: ``with under("status.allocatable"): ...``."""

    def __init__(self, path: str, separator: str = ": ") -> None:
        self._path = path
        self._separator = separator

    def __enter__(self) -> None:
        """Nothing to do yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, RequestError):
            raise error.under(self._path, self._separator) from None


def invalid(error: msgspec.ValidationError, path: str) -> RequestError:
    """The error of a part of an object for which the API server has no schema. ``path``: of the part."""
    where, reason = explain(error)
    separator = "" if where.startswith("[") or not where else "."
    return RequestError(f"{path}{separator}{where}: {reason}")


class MalformedError(RequestError):
    """An error that the API server would refuse. It can occur in a file, and not in a cluster."""


@dataclass(frozen=True, slots=True)
class Address:
    """The place of a document: its file or stream, its position from 1, and its object.

    ``list_position`` is the position inside a ``List``, from 1.
    """

    source: str = ""
    number: int = 0
    list_position: int = 0
    name: str = ""  # Kind/name, if known

    def __str__(self) -> str:
        place = f"document {self.number}" if self.number else ""
        place += f", item {self.list_position}" if self.list_position else ""
        named = f"{place} ({self.name})" if place and self.name else place or self.name
        return ": ".join(part for part in (self.source, named) if part)


class DocumentError(BadInput):
    """A document was refused. The message names file, document and field.

    Attributes:
        address: of the document.
        field: path inside it, e.g. ``spec.levels[0].nodeLabel``; empty when the document as a whole is wrong.
        reason: the error.
    """

    def __init__(self, address: Address, field: str, reason: str) -> None:
        super().__init__(": ".join(part for part in (str(address), field, reason) if part))
        self.address = address
        self.field = field
        self.reason = bounded(reason)


def explain(error: msgspec.ValidationError) -> tuple[str, str]:
    """Path and reason of a decoding error, in the form of the other messages."""
    match = _PATH.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    for pattern, reason in ((_UNKNOWN, "unknown field"), (_MISSING, "is required")):
        if found := pattern.match(what):
            return ".".join(part for part in (path, found["field"]) if part), reason
    return path, what[:1].lower() + what[1:]
