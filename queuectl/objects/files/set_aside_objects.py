"""The file of a unit that is set aside: the object as the API server sent it, or the records of its workload.

It is JSON. Text that can have a secret is replaced before the file is stored: values of environment variables, commands, arguments, values of
annotations that queuectl does not read, sentences, contents of volumes, opaque parameters, and each value whose key names a secret.
Names, labels, requests and numbers stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import msgspec

from queuectl.distribution import version
from queuectl.domain.containment import KEPT_BYTES, Received, SetAside
from queuectl.domain.quantity import Resources
from queuectl.objects import keys

FORMAT: Final = "queuectl.dev/set-aside/v1"
REDACTED: Final = "(redacted)"

_NAMED: Final = frozenset({"env", "envFrom", "httpHeaders", "volumes", "volumeMounts"})
"""Fields with lists of things that have names. The names stay."""
_HIDDEN: Final = frozenset(
    {"command", "args", "arguments", "entrypoint", "message", "parameters", "script", "userData"}
    | {"data", "stringData", "binaryData", "envVars", "driverEnvVars", "executorEnvVars"}
    | {"runtimeEnv", "runtimeEnvYAML", "rayStartParams", "hadoopConf", "volumeClaimTemplates"}
)
_SECRET: Final = re.compile(
    r"passw|secret|token|credential|(access|api|private|account)[._-]?key", re.IGNORECASE
)
_READ_PROPERTY: Final = re.compile(
    r"(cores|memory|factor|overhead|instances|amount|vendor|enabled|allocator)$", re.IGNORECASE
)
"""Properties of Spark that queuectl reads."""
_LOGIN: Final = re.compile(r"://[^/@\s]+@")
_READ_ANNOTATIONS: Final = (keys.PREFIX, keys.KUEUE_PREFIX)


@dataclass(frozen=True, slots=True)
class File:
    """A file, as it is stored.

    Attributes:
        content: JSON.
        size: bytes of the object or the records before redaction and truncation.
        truncated: a part of the object is missing.
    """

    content: bytes
    size: int
    truncated: bool


def pack(failure: SetAside, received: Received | None, records: Iterable[object]) -> File:
    """The file of a unit.

    Args:
        failure: the unit.
        received: its object; None if only the records are known.
        records: of its workload.
    """
    about = {
        "format": FORMAT,
        "version": version(),
        "boundary": str(failure.boundary),
        "unit": failure.ref,
        "error": failure.error,
        "place": failure.place,
        "failures": failure.failures,
    }
    if received is not None:
        text, size = redacted(received.content), len(received.content)
        about |= {"resource": received.resource}
        part = "object"
    else:
        text = _encode([{"type": type(one).__name__, "value": one} for one in records])
        size, part = len(text), "records"
    truncated = len(text) > KEPT_BYTES
    about |= {"bytes": size, "truncated": truncated}
    if truncated:
        about |= {"text": text[:KEPT_BYTES].decode(errors="ignore")}
    else:
        about |= {part: msgspec.Raw(text)}
    return File(msgspec.json.encode(about), size, truncated)


def redacted(document: bytes) -> bytes:
    """An object without what can hold a secret. A document that is not JSON becomes ``null``.

    Numbers keep their digits: they can be the cause of the error.
    """
    try:
        value = json.loads(
            document, parse_int=_digits, parse_float=_digits, parse_constant=lambda _: None
        )
        return msgspec.json.encode(_without_secrets(value))
    except (ValueError, TypeError, RecursionError):
        return b"null"


def _digits(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _without_secrets(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _field(key, one) for key, one in content.items() if key != "managedFields"}
    if isinstance(content, list):
        return [_without_secrets(one) for one in content]
    return _LOGIN.sub(f"://{REDACTED}@", content) if isinstance(content, str) else content


def _field(key: str, content: Any) -> Any:
    if key == "annotations" and isinstance(content, dict):
        return {
            name: one if name.startswith(_READ_ANNOTATIONS) else _hidden(one)
            for name, one in content.items()
        }
    if key == "sparkConf" and isinstance(content, dict):
        return {
            name: one if _READ_PROPERTY.search(name) and not _SECRET.search(name) else _hidden(one)
            for name, one in content.items()
        }
    if key in _NAMED:
        return _hidden(content, names=isinstance(content, list))
    if key in _HIDDEN or _SECRET.search(key):
        return _hidden(content)
    return _without_secrets(content)


def _hidden(content: Any, *, names: bool = False) -> Any:
    """The same structure without text. ``names``: texts of fields with the key ``name`` stay."""
    if isinstance(content, dict):
        return {
            key: one if names and key == "name" and isinstance(one, str) else _hidden(one)
            for key, one in content.items()
        }
    if isinstance(content, list):
        return [_hidden(one, names=names) for one in content]
    return content if content is None or isinstance(content, bool) else REDACTED


def _plain(content: object) -> object:
    match content:
        case Resources():
            return dict(content)
        case Fraction():
            return str(content)
        case _:
            return repr(content)


def _encode(content: object) -> bytes:
    """JSON; text if a value has no form in JSON."""
    try:
        return msgspec.json.encode(content, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError):
        return msgspec.json.encode(repr(content))
