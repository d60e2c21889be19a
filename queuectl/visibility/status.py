"""Errors as the object Status of Kubernetes, which kubectl prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from starlette.responses import Response

from queuectl.domain.errors import QueuectlError

JSON: Final = "application/json"
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class StatusError(QueuectlError):
    """A request that is refused.

    Attributes:
        code: HTTP status.
        headers: of the answer.
    """

    def __init__(self, code: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.headers = dict(headers or {})


def status(code: int, message: str) -> dict[str, Any]:
    """The object Status of an error."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS[code],
        "code": code,
    }


def error_response(error: StatusError) -> Response:
    """The answer to a request that is refused."""
    body = orjson.dumps(status(error.code, str(error)))
    return Response(body, error.code, error.headers, media_type=JSON)
