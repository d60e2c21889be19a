"""What several files of tests stand on: built when the first asks, and one at a time.

An idle control plane costs a thirtieth of a core and eight of the 128 inotify instances a user has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class Standing:
    """Holds one thing at most."""

    def __init__(self) -> None:
        self._held: tuple[object, Any] | None = None
        self._end = ExitStack()

    def on(self, build: Callable[[], AbstractContextManager[T]]) -> T:
        """What ``build`` makes; made already, if it was asked for last."""
        if self._held is None or self._held[0] is not build:
            self.end()
            self._held = build, self._end.enter_context(build())
        built: T = self._held[1]
        return built

    def end(self) -> None:
        """Nothing stands any more."""
        self._held = None
        self._end.close()


STANDING = Standing()


@pytest.fixture(scope="session")
def standing() -> Iterator[Standing]:
    yield STANDING
    STANDING.end()
