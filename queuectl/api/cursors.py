"""Cursors of lists in the order of names: the name after which the next page begins, opaque to callers."""

from __future__ import annotations

import base64
import binascii

from queuectl.api.problems import wrong_parameter


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
