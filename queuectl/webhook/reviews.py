"""Answers to the AdmissionReviews of the API server."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import structlog

from queuectl.cel.expression import EvaluationError
from queuectl.domain.errors import BadInput
from queuectl.webhook.mutations import Mutation

_API: Final = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_log = structlog.get_logger(source="queuectl.webhook")


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    operation: str
    user_info: dict[str, Any]
    object: dict[str, Any]
    namespace: str = ""
    resource: dict[str, Any] = {}
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct):
    request: _Request


_read = msgspec.json.Decoder(_Review).decode


def answer(mutation: Mutation, body: bytes) -> bytes:
    """The AdmissionReview with the response.

    An object that the policy cannot be evaluated for is refused, as the API server refuses it for ``failurePolicy: Fail``.

    Raises:
        BadInput: the body is no AdmissionReview of a new object.
    """
    try:
        request = _read(body).request
    except msgspec.MsgspecError as error:
        raise BadInput(f"not an AdmissionReview of a new object: {error}") from error
    except RecursionError as error:
        raise BadInput("the object is nested too deeply") from error
    return msgspec.json.encode({**_API, "response": _response(mutation, request)})


def _response(mutation: Mutation, request: _Request) -> Mapping[str, Any]:
    try:
        patch = mutation.patch(
            request.object,
            {
                "userInfo": request.user_info,
                "operation": request.operation,
                "namespace": request.namespace,
                "resource": request.resource,
            },
            request.old_object,
        )
    except EvaluationError as error:
        _log.warning("mutation_failed", policy=mutation.name, error=str(error))
        status = {"code": 422, "reason": "Invalid", "message": str(error)}
        return {"uid": request.uid, "allowed": False, "status": status}
    encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
    return {"uid": request.uid, "allowed": True, "patchType": "JSONPatch", "patch": encoded}
