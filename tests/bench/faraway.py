"""The cluster double in its own process, as an API server is one: its work takes nothing from the loop that is measured.

Both sides speak in pickled frames over a pair of sockets. ``python -m tests.bench.faraway FD NODES`` is the far side.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from queuectl.domain.records import Delta
from tests.control.rig import nodes
from tests.doubles.cluster import FakeCluster
from tests.support.contained import no_unit_is_set_aside

STEP_SECONDS: Final = 0.01
_SIZE: Final = struct.Struct("!I")


class Line:
    """One end of the pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, *frame: object) -> None:
        data = pickle.dumps(frame)
        self._writer.write(_SIZE.pack(len(data)) + data)

    async def frames(self) -> AsyncIterator[tuple[Any, ...]]:
        """The messages of the other side, until it ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
                yield pickle.loads(await self._reader.readexactly(size))

    def close(self) -> None:
        self._writer.close()


class FarCluster:
    """The near side: each method of the double is a question to the other process."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._sinks: list[tuple[Callable[..., None], Callable[[str], None]]] = []

    def __getattr__(self, name: str) -> Any:
        return partial(self._ask, name)

    async def _ask(self, method: str, *arguments: object, **named: object) -> Any:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._line.send(number, method, arguments, named)
        return await answer

    async def watch(
        self,
        sink: Callable[[Sequence[Delta]], None],
        synced: Callable[[str], None],
        *,
        kueue: bool = True,
    ) -> None:
        self._sinks.append((sink, synced))
        self._line.send(len(self._sinks) - 1, "watch", (), {"kueue": kueue})
        await asyncio.Event().wait()

    async def listen(self) -> None:
        async for kind, number, value in self._line.frames():
            if kind == "deltas":
                self._sinks[number][0](value)
            elif kind == "synced":
                self._sinks[number][1](value)
            elif (asked := self._asked.pop(number)).done():
                pass  # the caller has timed out
            elif kind == "error":
                asked.set_exception(value)
            else:
                asked.set_result(value)


@asynccontextmanager
async def far_cluster(machines: int) -> AsyncIterator[FarCluster]:
    """The double with so many 8-GPU nodes, whose controllers act by themselves."""
    near, far = socket.socketpair()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.faraway", str(far.fileno()), str(machines),
        pass_fds=[far.fileno()],
    )  # fmt: skip
    far.close()
    line = Line(*await asyncio.open_connection(sock=near))
    cluster = FarCluster(line)
    listening = asyncio.create_task(cluster.listen())
    try:
        yield cluster
    finally:
        line.close()
        await asyncio.wait({listening})
        if await child.wait():
            raise RuntimeError("the far side failed")


async def main(descriptor: int, machines: int) -> None:
    """Be the far side until the near one ends."""
    line = Line(*await asyncio.open_connection(sock=socket.socket(fileno=descriptor)))
    cluster = FakeCluster(nodes(machines), clock=time.time)

    async def act() -> None:
        while True:
            began = time.perf_counter()
            cluster.step()
            # Between steps it answers, as an API server does: its controllers can use a quarter of it.
            await asyncio.sleep(3 * (time.perf_counter() - began) + STEP_SECONDS)

    async def answer(number: int, method: str, arguments: Any, named: Any) -> None:
        try:
            if method == "watch":
                deltas, synced = (partial(line.send, kind, number) for kind in ("deltas", "synced"))
                await cluster.watch(deltas, synced, **named)
            value = getattr(cluster, method)(*arguments, **named)
            line.send("answer", number, await value if asyncio.iscoroutine(value) else value)
        except Exception as error:  # noqa: BLE001 - raised on the other side
            line.send("error", number, error)

    tasks = {asyncio.create_task(act())}
    async for question in line.frames():
        task = asyncio.create_task(answer(*question))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    for task in [*tasks]:
        task.cancel()


if __name__ == "__main__":
    with no_unit_is_set_aside():
        asyncio.run(main(*map(int, sys.argv[1:])))
