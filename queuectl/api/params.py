"""The parameters of paths and queries, with limits: an invalid name never reaches the database. And the cursors of lists."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Annotated, Final

from fastapi import Header, Path, Query

from queuectl.api.problems import wrong_parameter
from queuectl.domain.identity import LONGEST_NAME
from queuectl.domain.queries import DocumentKey, SortKey
from queuectl.objects.configuration.config_kinds import ConfigKind

# ---- Parameters

NAME: Final = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
WORKLOAD: Final = rf"{NAME.removesuffix('$')}(_[0-9]{{1,3}})?$"
"""A job, or an index of an array."""
_KIND: Final = r"^[A-Za-z]{1,63}$"
UID: Final = r"^[0-9A-Za-z._-]{1,128}$"

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
        description="Only workloads of this user.",
    ),
]
Sort = Annotated[
    str,
    Query(
        max_length=32,
        description=f"One of {', '.join(f'`{key}`' for key in SortKey)}; `-` in front = descending. "
        "Send the same order with each `cursor`.",
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
        return base64.b64decode(cursor or "", altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        reason = f"cursor {cursor!r} is not one this server gave out"
        raise wrong_parameter("cursor", reason) from error
