"""The text in the editor of a configuration object, and the object that it replaces, as the forms send them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from queuectl.api.body import MAX_FORM_BYTES, Bodies, read_bytes
from queuectl.api.preconditions import etag
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.queries import DocumentKey
from queuectl.web.configuration import key_of, part_of

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS: Final = 16


@dataclass(frozen=True, slots=True)
class Draft:
    """A text that can become an object.

    Attributes:
        text: the content of the editor.
        key: of the object; None = a new object, which the text itself names.
        version: of the object when its text was taken into the editor; None = there was none.
        base: that object's text; empty = there was none.
        checked: the seal of the last checked text; empty = none.
    """

    text: str
    key: DocumentKey | None = None
    version: int | None = None
    base: str = ""
    checked: str = ""

    @property
    def seal(self) -> str:
        """Identifies this text together with this version."""
        return hashlib.blake2b(f"{self.version}\n{self.text}".encode(), digest_size=12).hexdigest()

    @property
    def part(self) -> str:
        """The part of an address that identifies its object; empty = the object is new."""
        return part_of(self.key) if self.key is not None else ""

    @property
    def conditions(self) -> tuple[str | None, str | None]:
        """If-Match and If-None-Match, so that the text replaces only the version that it was edited from."""
        return (etag(self.version), None) if self.version is not None else (None, "*")


async def form_of(request: Request, bodies: Bodies) -> dict[str, str]:
    """The fields of a form, line ends as one character.

    Raises:
        Problem: it is none, or too large.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != _FORM:
        raise ApiProblem(
            ProblemType.UNSUPPORTED_MEDIA_TYPE, f"{media!r} is not supported: send {_FORM}"
        )
    body = await read_bytes(request, MAX_FORM_BYTES)
    return await bodies.work(partial(_fields, body))


def _fields(body: bytes) -> dict[str, str]:
    text = body.decode(errors="replace")
    try:
        fields = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=_FIELDS)
    except ValueError as error:
        raise ApiProblem(ProblemType.MALFORMED_BODY, f"not a form: {error}") from error
    return {name: value.replace("\r\n", "\n") for name, value in fields}


def draft_of(form: dict[str, str]) -> Draft:
    """The draft in a form. Raises ApiProblem when it is no form of the editor."""
    part = form.get("of", "")
    return Draft(
        form.get("text", ""),
        key_of(part) if part else None,
        version_of(form),
        form.get("base", ""),
        form.get("checked", ""),
    )


def version_of(form: dict[str, str]) -> int | None:
    """The version that a form is about; None = there was no such object. Raises ApiProblem when it is no version."""
    given = form.get("version", "")
    if given and not (given.isdecimal() and len(given) < 19):
        raise ApiProblem(ProblemType.INVALID_PARAMETER, f"version: {given!r} is not a version")
    return int(given) if given else None
