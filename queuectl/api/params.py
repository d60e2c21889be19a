"""Parameters, cursors and preconditions of requests.

Parameters of paths and queries have limits: an invalid name never reaches the database. The preconditions are ETags, ``If-Match`` and
``If-None-Match`` (RFC 9110 §13), for concurrent edits of one object.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Annotated, Any, Final

from fastapi import Header, Path, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from queuectl.api.problems import ApiProblem, ProblemType, wrong_parameter
from queuectl.domain.identity import LONGEST_NAME
from queuectl.domain.queries import DocumentKey, SortKey
from queuectl.domain.selectors import LONGEST as LONGEST_SELECTOR
from queuectl.objects.configuration.config_kinds import PREFIX, ConfigKind

# ---- Parameters

NAME: Final = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
WORKLOAD: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,255}[A-Za-z0-9])?$"
"""A job, an index of an array, or a group of pods, whose name is the value of a label."""
_KIND: Final = r"^[A-Za-z][A-Za-z0-9]{0,62}$"
UID: Final = r"^[0-9A-Za-z._-]{1,128}$"
REQUEST_ID: Final = "^[!-~]{1,128}$"
"""A value of ``Idempotency-Key``."""
Name = Annotated[str, Path(pattern=NAME, description="Name of the object.")]
Namespace = Annotated[str, Path(pattern=NAME, description="Namespace of the object.")]
WorkloadName = Annotated[
    str,
    Path(pattern=WORKLOAD, description="Name of the job; `JOB_INDEX` for an index of an array."),
]
Number = Annotated[int, Path(ge=1, lt=1 << 63, description="The `id` of the record.")]
Uid = Annotated[str, Path(pattern=UID, description="UID of the job (`metadata.uid`).")]
OfNamespace = Annotated[str | None, Query(alias="namespace", pattern=NAME)]
OfQueue = Annotated[
    str | None, Query(alias="queue", pattern=NAME, description="Only workloads of this LocalQueue.")
]
OfClusterQueue = Annotated[str | None, Query(alias="cluster_queue", pattern=NAME)]
OfKind = Annotated[
    str | None,
    Query(
        alias="kind",
        pattern=_KIND,
        description="Only jobs of this kind, for example Job or PyTorchJob.",
    ),
]
OfUser = Annotated[
    str | None,
    Query(
        alias="user",
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=r"^[^\x00]*$",
        description="Only workloads of this user.",
    ),
]
OfLabels = Annotated[
    str,
    Query(
        alias="label_selector",
        max_length=LONGEST_SELECTOR,
        description="Only workloads whose job has these labels, in the form of `kubectl -l`: `team=nlp,stage in (train, eval),!trial`. "
        "It knows neither labels of queuectl and Kueue, such as the one of the queue, nor more than the first 64 others by key.",
    ),
]
Sort = Annotated[
    str,
    Query(
        max_length=32,
        description=f"One of {', '.join(f'`{key}`' for key in SortKey)}; `-` in front = descending. "
        "`-urgency` = pending workloads, then admitted ones, then paused ones, then finished ones; of each, the newest first. "
        "Send the same order with each `cursor`. Only with `name`, pages leave out no workload that changes in between.",
    ),
]
Limit = Annotated[
    int, Query(ge=1, le=500, description="The largest number of items in the response.")
]
Cursor = Annotated[
    str | None, Query(max_length=2048, description="`nextCursor` of the previous page.")
]
Before = Annotated[
    int | None, Query(ge=1, lt=1 << 63, description="`nextBefore` of the previous page.")
]
After = Annotated[int, Query(ge=0, lt=1 << 63, description="Only lines after this `id`.")]
DryRun = Annotated[
    bool, Query(alias="dry_run", description="Check and compare only. Nothing is stored.")
]
IfMatch = Annotated[
    str | None,
    Header(description="Change the object only if it has this ETag; `*` = only if it exists."),
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        description="In a write, `*` = only if the object does not exist. In a GET, the response is 304 if the object has this ETag."
    ),
]


def key_in_path(kind: ConfigKind) -> Callable[..., DocumentKey]:
    """The dependency that reads the identity of a configuration object from the path."""

    def clusterwide(name: Name) -> DocumentKey:
        return DocumentKey(kind.kind, "", name)

    def namespaced(namespace: Namespace, name: Name) -> DocumentKey:
        return DocumentKey(kind.kind, namespace, name)

    return namespaced if kind.namespaced else clusterwide


# ---- Unknown parameters

_POSITIONS: Final = frozenset({"cursor", "before", "after"})
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRoute(APIRoute):
    """A route that refuses unknown query parameters: with a misspelled ``dry_run``, a trial would be carried out.

    A GET ignores the parameters of pages that it does not have, so that a program can read each list in the same way. Probes and
    scrapers, whose paths are not below ``PREFIX``, can add parameters.
    """

    def get_route_handler(self) -> Handler:
        """The handler, which first compares the names of the parameters."""
        handler = super().get_route_handler()
        if not self.path.startswith(f"{PREFIX}/"):
            return handler
        own = set(_query_names(self.dependant))
        ignored: set[str] = set()
        if "GET" in (self.methods or ()):
            ignored = {"limit"} if own & _POSITIONS else {"limit", *_POSITIONS}
        # The audit log keeps the detail. A name can be a credential that its sender pasted, so only the answer has it.
        detail = f"a query parameter is not one of those of this request ({', '.join(sorted(own)) or 'none'})"

        async def checked(request: Request) -> Response:
            for name in request.query_params:
                if name not in own and name not in ignored:
                    raise wrong_parameter(name, "unknown parameter", detail)
            return await handler(request)

        return checked


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


# ---- Cursors of lists


def cursor_after(name: str) -> str:
    """The cursor of the page after this name."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def name_before(cursor: str | None) -> str:
    """The name that a page comes after; empty for the first page.

    Raises:
        Problem: ``cursor`` is not one of :func:`cursor_after`.
    """
    try:
        name = base64.b64decode(cursor or "", altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        name = "\0"
    if "\0" in name:
        raise wrong_parameter("cursor", f"cursor {cursor!r} is not one this server gave out")
    return name


# ---- Preconditions

_TAG: Final = re.compile(r'(W/)?"([^"]*)"')
_LIST: Final = re.compile(r'\s*(?:W/)?"[^"]*"\s*(?:,\s*(?:W/)?"[^"]*"\s*)*')


def etag(version: int | str) -> str:
    """The strong entity tag of a row's version, or of a digest."""
    return f'"{version}"'


def _tags(header: str, content: str, *, weak: bool) -> set[str]:
    if not _LIST.fullmatch(content):
        detail = f'{header} must be * or a list of quoted entity tags such as "7"'
        raise wrong_parameter(header, "not an entity tag", detail)
    return {f'"{tag}"' for prefix, tag in _TAG.findall(content) if weak or not prefix}


def check_write(version: int | None, if_match: str | None, if_none_match: str | None) -> None:
    """Check the preconditions of a PUT or DELETE.

    Args:
        version: of the stored object; None without one.
        if_match: the header; ``*`` = it must exist.
        if_none_match: the header; ``*`` = it must not exist.

    Raises:
        Problem: precondition-failed, or invalid-parameter for a header that cannot be read.
    """
    current = etag(version) if version is not None else None
    if if_match is not None and not _matches(current, "If-Match", if_match, weak=False):
        raise ApiProblem(ProblemType.PRECONDITION_FAILED, _stale(current, if_match))
    if if_none_match is not None and _matches(current, "If-None-Match", if_none_match, weak=True):
        raise ApiProblem(
            ProblemType.PRECONDITION_FAILED, f"the object exists, with entity tag {current}"
        )


def unchanged(version: int | str, if_none_match: str | None) -> bool:
    """Whether the response to a GET is 304."""
    if if_none_match is None:
        return False
    return _matches(etag(version), "If-None-Match", if_none_match, weak=True)


def matches_any(condition: str) -> bool:
    """Whether a header is ``*``, which each version of an object matches."""
    return condition.strip() == "*"


def _matches(current: str | None, header: str, content: str, *, weak: bool) -> bool:
    if matches_any(content):
        return current is not None
    return current in _tags(header, content, weak=weak)


def _stale(current: str | None, precondition: str) -> str:
    if current is None:
        return f"the object does not exist, and If-Match asks for {precondition}"
    return (
        f"the object has entity tag {current}, and If-Match asks for {precondition}: read it again"
    )
