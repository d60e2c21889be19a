"""The parts of a request: its path, its options, and the form of its answer."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import orjson

from queuectl.domain.errors import BadInput
from queuectl.domain.identity import LONGEST_NAME, Right
from queuectl.domain.ledger import Entry
from queuectl.domain.selectors import (
    Selector,
    exact,
    field_selector,
    label_selector,
    matches,
)
from queuectl.visibility.discovery import AGGREGATED_TYPE
from queuectl.visibility.objects import FIELDS, GROUP, PLURAL, VERSION, fields_of, labels_of
from queuectl.visibility.rows import ObjectKey
from queuectl.visibility.status import JSON, StatusError
from queuectl.visibility.tables import IncludeObject

MOST_PARAMETERS: Final = 32
_COLLECTION: Final = ("apis", GROUP, VERSION)


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """QueuedJobs: those of all namespaces, of one namespace, or one. Empty = not limited to it."""

    namespace: str = ""
    name: str = ""

    def right(self, verb: str, name: str = "") -> Right:
        """The right that a read of it needs."""
        return Right(verb, PLURAL, self.namespace, name or self.name, GROUP)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of a list or a watch.

    Attributes:
        labels, fields: selectors.
        limit: objects in one answer; 0 = all.
        after: the object at which the last answer ended; None = from the first.
        watch: follow the changes.
        version: where a watch begins, in milliseconds; 0 = with all objects that exist.
        seconds: after which a watch ends; 0 = the server decides.
        bookmarks: a watch also gets its position.
        initial: a watch begins with all objects that exist, and a bookmark after them.
        include: what rows of a table have of their objects.
    """

    labels: Selector = ()
    fields: Selector = ()
    limit: int = 0
    after: ObjectKey | None = None
    watch: bool = False
    version: int = 0
    seconds: int = 0
    bookmarks: bool = False
    initial: bool = False
    include: IncludeObject = IncludeObject.METADATA

    @property
    def name(self) -> str:
        """The only name that the field selector admits; empty if it admits several."""
        return exact(self.fields, "metadata.name") or ""

    @classmethod
    def read(cls, query: bytes) -> ListOptions:
        """From the query of a URL.

        Raises:
            BadInput: an option is malformed.
        """
        parameters = _parameters(query)
        include = parameters.get("includeObject", "") or IncludeObject.METADATA
        if include not in set(IncludeObject):
            raise BadInput("includeObject must be None, Metadata or Object")
        return cls(
            labels=label_selector(parameters.get("labelSelector", "")),
            fields=field_selector(parameters.get("fieldSelector", ""), FIELDS),
            limit=_whole(parameters, "limit"),
            after=_position(parameters.get("continue", "")),
            watch=_flag(parameters, "watch"),
            version=_whole(parameters, "resourceVersion"),
            seconds=_whole(parameters, "timeoutSeconds"),
            bookmarks=_flag(parameters, "allowWatchBookmarks"),
            initial=_flag(parameters, "sendInitialEvents"),
            include=IncludeObject(include),
        )


def chosen(entry: Entry, target: ReadTarget, options: ListOptions) -> bool:
    """Whether a workload is among the QueuedJobs of a list or a watch."""
    return (
        (not target.namespace or entry.namespace == target.namespace)
        and (not options.labels or matches(options.labels, labels_of(entry)))
        and (not options.fields or matches(options.fields, fields_of(entry)))
    )


def all_chosen(
    workloads: Mapping[ObjectKey, Entry], target: ReadTarget, options: ListOptions
) -> list[Entry]:
    """The workloads of a list or a watch, after the one at which the last answer ended. Call it on a thread: there can be many."""
    return [
        entry
        for key, entry in workloads.items()
        if (options.after is None or key > options.after) and chosen(entry, target, options)
    ]


def continuation(key: ObjectKey) -> str:
    """The option ``continue`` of the next list, after this object."""
    return base64.urlsafe_b64encode(orjson.dumps(key)).decode()


def segments(raw_path: bytes) -> tuple[str, ...]:
    """The parts of a path. A slash that is percent-encoded belongs to its part.

    Raises:
        StatusError: it is not UTF-8.
    """
    try:
        return tuple(
            unquote_to_bytes(part).decode() for part in raw_path.strip(b"/").split(b"/") if part
        )
    except UnicodeDecodeError:
        raise StatusError(400, "the path is not UTF-8") from None


def target_of(parts: tuple[str, ...]) -> ReadTarget | None:
    """The QueuedJobs of a path; None if it is another one."""
    if parts[:3] != _COLLECTION:
        return None
    match parts[3:]:
        case [resource] if resource == PLURAL:
            return ReadTarget()
        case ["namespaces", namespace, resource] if resource == PLURAL:
            return ReadTarget(_named(namespace))
        case ["namespaces", namespace, resource, name] if resource == PLURAL:
            return ReadTarget(_named(namespace), _named(name))
        case _:
            return None


def wants_table(accept: str) -> bool:
    """Whether the answer is a Table.

    Raises:
        StatusError: it is to be something else than JSON.
    """
    offers = [_media_type(part) for part in accept.split(",")[:MOST_PARAMETERS] if part.strip()]
    if not offers:
        return False
    for kind, parameters in offers:
        if kind not in (JSON, "application/*", "*/*"):
            continue
        form = parameters.get("as")
        if form == "Table" and (parameters.get("g"), parameters.get("v")) == ("meta.k8s.io", "v1"):
            return True
        if form is None and "stream" not in parameters:
            return False
    raise StatusError(406, "the only formats are application/json, and a Table of meta.k8s.io/v1")


def wants_aggregated(accept: str) -> bool:
    """Whether the answer about the groups has all resources."""
    return any(_media_type(part) == _media_type(AGGREGATED_TYPE) for part in accept.split(","))


def _media_type(text: str) -> tuple[str, Mapping[str, str]]:
    kind, *parameters = (part.strip() for part in text.split(";"))
    pairs = (part.partition("=") for part in parameters)
    return kind.lower(), {key: value for key, _, value in pairs if key != "q"}


def _named(name: str) -> str:
    if len(name) > LONGEST_NAME:
        raise StatusError(404, f"a name has at most {LONGEST_NAME} characters")
    return name


def _parameters(query: bytes) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(
            query.decode(), keep_blank_values=True, max_num_fields=MOST_PARAMETERS, errors="strict"
        )
    except ValueError:
        raise BadInput("the query is malformed, or has too many parameters") from None
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise BadInput("a parameter is given twice")
    return parameters


def _whole(parameters: Mapping[str, str], name: str) -> int:
    text = parameters.get(name, "") or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise BadInput(f"{name} is not a whole number")
    return int(text)


def _flag(parameters: Mapping[str, str], name: str) -> bool:
    text = parameters.get(name, "false")
    if text.lower() not in ("", "true", "false", "1", "0", "t", "f"):
        raise BadInput(f"{name} is neither true nor false")
    return text.lower() in ("", "true", "1", "t")


def _position(text: str) -> ObjectKey | None:
    if not text:
        return None
    try:
        key: Any = orjson.loads(base64.b64decode(text, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        key = None
    if not (isinstance(key, list) and len(key) == 2 and all(isinstance(k, str) for k in key)):
        raise BadInput("continue is not a token of this server")
    return key[0], key[1]
