"""Request bodies as values: read once rights are checked, and off the event loop unless they are small.

A route calls these functions in its endpoint, which runs after its dependencies, and so after its rights. No route declares a
body to FastAPI, which would decode it first. The limits of the work are in :mod:`queuectl.api.reading`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from queuectl.api import reading
from queuectl.api.problems import (
    RETRY_SECONDS,
    ApiProblem,
    ProblemType,
    wrong_fields,
    wrong_members,
)
from queuectl.api.reading import MAX_VALUES, malformed, read_json, read_yaml
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.domain.errors import TookTooLong

JSON_TYPES: Final = ("application/json",)
YAML_TYPES: Final = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
MAX_SMALL: Final = 1 << 15
"""Bytes of a body that holds a few fields; a token has 16 KiB at most. Decoded on the event loop, in about a millisecond."""
MAX_BYTES: Final = 1 << 18
"""Bytes of a document. This is also the limit for all YAML."""
MAX_LIST_BYTES: Final = 1 << 21
"""Bytes of a list of documents in JSON: about 3,000 of them."""
MAX_FORM_BYTES: Final = 1 << 20
"""Bytes of a form of the dashboard: a document and what it replaces, both escaped."""
_LIST_VALUES: Final = 10 * MAX_VALUES
_SHARE: Final = 0.25  # of one core
_PATIENCE: Final = 60.0  # seconds; the limits end the work before

_Model = TypeVar("_Model", bound=BaseModel)
_Answer = TypeVar("_Answer")


async def read_small(request: Request, model: type[_Model]) -> _Model | None:
    """A small JSON body as this model; None without a body.

    Raises:
        Problem: unsupported-media-type, body-too-large, malformed-body or invalid-parameter.
    """
    body = await read_bytes(request, MAX_SMALL)
    if not body:
        return None
    _media(request, JSON_TYPES)
    value = read_json(body)
    return None if value is None else _modeled(value, model)


def missing() -> ApiProblem:
    """A small JSON body that is required, as this model."""
    return wrong_members([{"field": "", "reason": "a body is required"}])


class Bodies:
    """Reads large bodies in a thread, one at a time and with a share of one core."""

    def __init__(self) -> None:
        self._throttle = PlannerThrottle(_SHARE)

    async def document(self, request: Request) -> dict[str, Any]:
        """The body as one mapping, JSON or YAML.

        Raises:
            Problem: unsupported-media-type, body-too-large, malformed-body or took-too-long.
        """
        return await self._document(request, MAX_BYTES, MAX_VALUES, lambda document: document)

    async def documents(
        self, request: Request, build: Callable[[dict[str, Any]], _Answer]
    ) -> _Answer:
        """The same for a body with many documents, which has a larger limit in JSON.

        ``build``: converts the body in the thread in which it is decoded. Also raises the errors of ``build``.
        """
        return await self._document(request, MAX_LIST_BYTES, _LIST_VALUES, build)

    async def model(self, request: Request, model: type[_Model]) -> _Model:
        """A JSON body with many documents, as this model. It also raises invalid-parameter."""
        _media(request, JSON_TYPES)
        body = await read_bytes(request, MAX_LIST_BYTES)
        if not body:
            raise missing()
        return await self._read(body, lambda: _modeled(read_json(body, _LIST_VALUES), model))

    async def patch(self, request: Request) -> dict[str, Any]:
        """The body as a merge patch of a mapping. Raises as :meth:`document`."""
        _media(request, (reading.MERGE_PATCH,), "Accept-Patch", default="")
        body = await read_bytes(request, MAX_BYTES)
        patch = await self._read(body, lambda: read_json(body))
        if not isinstance(patch, dict):
            raise malformed("a patch must be a mapping of what changes")
        return patch

    async def yaml(self, text: str) -> dict[str, Any]:
        """A text of a form, as one mapping.

        Raises:
            Problem: malformed-body or took-too-long.
        """
        return _mapping(await self.work(lambda: read_yaml(text.encode())))

    async def work(self, work: Callable[[], _Answer]) -> _Answer:
        """The result of ``work``, which runs when the requests before it are done. Raises the errors of ``work``.

        Raises:
            Problem: took-too-long, if too many requests wait.
        """
        try:
            async with self._throttle.turn():
                return await self._throttle.work_out(lambda _: work(), _PATIENCE)
        except TookTooLong as error:
            retry = {"Retry-After": str(RETRY_SECONDS)}
            raise ApiProblem(ProblemType.TOOK_TOO_LONG, str(error), retry) from error

    async def _document(
        self,
        request: Request,
        most: int,
        value_limit: int,
        build: Callable[[dict[str, Any]], _Answer],
    ) -> _Answer:
        media = _media(request, JSON_TYPES + YAML_TYPES)
        if media in JSON_TYPES:
            body = await read_bytes(request, most)
            return await self._read(body, lambda: build(_mapping(read_json(body, value_limit))))
        body = await read_bytes(request, MAX_BYTES)
        return await self.work(lambda: build(_mapping(read_yaml(body))))

    async def _read(self, body: bytes, read: Callable[[], _Answer]) -> _Answer:
        """Decode small JSON here, because a wait would cost more."""
        return read() if len(body) <= MAX_SMALL else await self.work(read)


async def read_bytes(request: Request, most: int) -> bytes:
    """The body as it came.

    Raises:
        Problem: body-too-large, when the limit is reached.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 19 and int(length) > most:
        raise _too_large(most)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
    return b"".join(parts)


def _too_large(most: int) -> ApiProblem:
    detail = f"the body has more than {most} bytes"
    return ApiProblem(ProblemType.BODY_TOO_LARGE, detail, {"Connection": "close"})


def _media(
    request: Request,
    accepted: tuple[str, ...],
    header: str = "Accept",
    default: str = JSON_TYPES[0],
) -> str:
    """The media type of the body, which must be one of these; ``header`` lists them in an error."""
    media = request.headers.get("content-type", default).partition(";")[0].strip().lower()
    if media not in accepted:
        detail = f"{media!r} is not understood; send {' or '.join(accepted)}"
        raise ApiProblem(ProblemType.UNSUPPORTED_MEDIA_TYPE, detail, {header: ", ".join(accepted)})
    return media


def _mapping(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise malformed("the body must be one document: a mapping with apiVersion and kind")
    return document


def _modeled(body: Any, model: type[_Model]) -> _Model:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise wrong_fields(error.errors(include_url=False, include_input=False)) from error
