"""Resources that several test files share. Each is built at its first use, on the one below it, and only one stack of them exists at a time.

An idle control plane costs a thirtieth of a core and 8 of the 128 inotify instances of a user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar, overload

import pytest

Below = TypeVar("Below")
Resource = TypeVar("Resource")
Build = Callable[..., AbstractContextManager[Any]]


class SharedResource:
    """Holds a stack of resources."""

    def __init__(self) -> None:
        self._held: list[tuple[Build, Any, ExitStack]] = []

    @overload
    def get(self, first: Callable[[], AbstractContextManager[Resource]], /) -> Resource: ...

    @overload
    def get(
        self,
        first: Callable[[], AbstractContextManager[Below]],
        second: Callable[[Below], AbstractContextManager[Resource]],
        /,
    ) -> Resource: ...

    def get(self, *builds: Build) -> Any:
        """The resource that the last build makes from the one before.

        Present resources of the same first builds are reused. The others end before.
        """
        common = 0
        while (
            common < min(len(self._held), len(builds)) and self._held[common][0] is builds[common]
        ):
            common += 1
        self._end_above(common)
        for build in builds[common:]:
            below = [resource for _, resource, _ in self._held[-1:]]
            end = ExitStack()
            self._held.append((build, end.enter_context(build(*below)), end))
        return self._held[-1][1]

    def end(self) -> None:
        """End the current resources."""
        self._end_above(0)

    def _end_above(self, count: int) -> None:
        with ExitStack() as ends:
            for _, _, end in self._held[count:]:
                ends.push(end)
            del self._held[count:]


SHARED_RESOURCE = SharedResource()


@pytest.fixture(scope="session")
def shared_resource() -> Iterator[SharedResource]:
    yield SHARED_RESOURCE
    SHARED_RESOURCE.end()
