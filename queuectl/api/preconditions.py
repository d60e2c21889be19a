"""ETags, ``If-Match`` and ``If-None-Match`` (RFC 9110 §13), for concurrent edits of one object."""

from __future__ import annotations

import re
from typing import Final

from queuectl.api.problems import ApiProblem, ProblemType, wrong_parameter

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


def _matches(current: str | None, header: str, content: str, *, weak: bool) -> bool:
    if content.strip() == "*":
        return current is not None
    return current in _tags(header, content, weak=weak)


def _stale(current: str | None, precondition: str) -> str:
    if current is None:
        return f"the object does not exist, and If-Match asks for {precondition}"
    return (
        f"the object has entity tag {current}, and If-Match asks for {precondition}: read it again"
    )
