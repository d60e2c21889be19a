"""Resources that several test files share. Each is built at its first use, and only one exists at a time.

An idle control plane costs a thirtieth of a core and 8 of the 128 inotify instances of a user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class SharedResource:
    """Holds at most one resource."""

    def __init__(self) -> None:
        self._held: tuple[object, Any] | None = None
        self._end = ExitStack()

    def get(self, build: Callable[[], AbstractContextManager[T]]) -> T:
        """The resource that ``build`` makes. It is reused if it was the last one."""
        if self._held is None or self._held[0] is not build:
            self.end()
            self._held = build, self._end.enter_context(build())
        built: T = self._held[1]
        return built

    def end(self) -> None:
        """End the present resource."""
        self._held = None
        self._end.close()


SHARED_RESOURCE = SharedResource()


@pytest.fixture(scope="session")
def shared_resource() -> Iterator[SharedResource]:
    yield SHARED_RESOURCE
    SHARED_RESOURCE.end()
