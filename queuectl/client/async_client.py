"""The client for programs on an event loop. It has the methods of :class:`queuectl.client.Client`, as coroutines and async iterators."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from queuectl.client import requests
from queuectl.client.answers import HttpAnswer, Json, check
from queuectl.client.errors import ClientError, WaitTimeout
from queuectl.client.options import ClientOptions
from queuectl.client.requests import Listing, Request
from queuectl.client.retries import RETRIES, Attempts

if TYPE_CHECKING:
    import httpx2

    from queuectl.client.parameters import (
        ActionName,
        EventFilters,
        NodeFilters,
        OptionValues,
        PlanChanges,
        ReportName,
        WorkloadFilters,
        WorkloadRef,
    )
    from queuectl.client.stream import Following, StreamEvent
    from queuectl.client.types import (
        CommandJson,
        EventJson,
        ExplainJson,
        HistoryJson,
        JobEfficiencyJson,
        NodeJson,
        PlanJson,
        PodJson,
        PreviewJson,
        QueueStopJson,
        ReceiverPageJson,
        SubscriptionJson,
        WorkloadJson,
    )
    from queuectl.domain.commands import Action

T = TypeVar("T")


class AsyncClient:
    """As :class:`Client`, for programs on an event loop.

    Attributes:
        options: the options in use.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        options: ClientOptions | None = None,
        retries: int = RETRIES,
        timeout: float = requests.TIMEOUT_SECONDS,
        transport: httpx2.AsyncBaseTransport | None = None,
        **named: Unpack[OptionValues],
    ) -> None:
        """As :class:`Client`."""
        from queuectl.client import http

        self.options = options or ClientOptions.from_environment(server=server, **named)
        self.options.check()
        self._retries = retries
        self._login = self.options.login()
        self._http = http.async_client(self.options, timeout, transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As :meth:`Client.close`."""
        await self._http.aclose()

    # ---- Any request

    async def send(self, request: Request[T]) -> T:
        """As :meth:`Client.send`."""
        attempts = Attempts(self._retries, repeatable=request.repeatable)
        while True:
            try:
                return request.decoded(await self._answer(request))
            except ClientError as error:
                pause = attempts.pause(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def get(self, path: str, /, **query: object) -> Json:
        """As :meth:`Client.get`."""
        return await self.send(requests.get(path, **query))

    async def text(self, path: str, /, **query: object) -> str:
        """As :meth:`Client.text`."""
        return await self.send(requests.get_text(path, **query))

    async def put(self, path: str, document: Json) -> Json:
        """As :meth:`Client.put`."""
        return await self.send(requests.put(path, document))

    async def post(
        self, path: str, body: Json, timeout: float | None = None, key: str | None = None
    ) -> Json:
        """As :meth:`Client.post`."""
        return await self.send(requests.post(path, body, timeout, key))

    async def delete(self, path: str, version: str | None = None, *, dry_run: bool = False) -> None:
        """As :meth:`Client.delete`."""
        await self.send(requests.delete(path, version, dry_run=dry_run))

    async def pages(self, listing: Listing[Any]) -> AsyncIterator[Json]:
        """As :meth:`Client.pages`."""
        plan = listing.pages()
        while (request := plan.request()) is not None:
            body = await self.send(request)
            plan.received(body)
            yield body

    async def objects(self, listing: Listing[T]) -> AsyncIterator[T]:
        """As :meth:`Client.objects`."""
        async for body in self.pages(listing):
            for item in body["items"]:
                yield item

    # ---- Workloads and nodes

    def workloads(self, **filters: Unpack[WorkloadFilters]) -> AsyncIterator[WorkloadJson]:
        """As :meth:`Client.workloads`."""
        return self.objects(requests.workloads(filters))

    async def workload(self, workload: WorkloadRef, kind: str | None = None) -> WorkloadJson:
        """As :meth:`Client.workload`."""
        return await self.send(requests.workload(self._path(workload), kind))

    async def explain(self, workload: WorkloadRef, kind: str | None = None) -> ExplainJson:
        """As :meth:`Client.explain`."""
        return await self.send(requests.explain(self._path(workload), kind))

    async def eff(self, workload: WorkloadRef, kind: str | None = None) -> JobEfficiencyJson:
        """As :meth:`Client.eff`."""
        return await self.send(requests.efficiency(self._path(workload), kind))

    def history(self, workload: WorkloadRef, kind: str | None = None) -> AsyncIterator[HistoryJson]:
        """As :meth:`Client.history`."""
        return self.objects(requests.history(self._path(workload), kind))

    def pods(self, workload: WorkloadRef, kind: str | None = None) -> AsyncIterator[PodJson]:
        """As :meth:`Client.pods`."""
        return self.objects(requests.pods(self._path(workload), kind))

    def nodes(self, **filters: Unpack[NodeFilters]) -> AsyncIterator[NodeJson]:
        """As :meth:`Client.nodes`."""
        return self.objects(requests.nodes(filters))

    # ---- Questions

    async def what_if(self, **changes: Unpack[PlanChanges]) -> PlanJson:
        """As :meth:`Client.what_if`."""
        return await self.send(requests.what_if(changes))

    async def report(
        self,
        name: ReportName,
        by: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Json:
        """As :meth:`Client.report`."""
        return await self.send(requests.report(name, by, since, until))

    # ---- Commands

    async def command(
        self,
        workload: WorkloadRef,
        action: Action | ActionName,
        *,
        kind: str | None = None,
        key: str | None = None,
        **details: object,
    ) -> CommandJson:
        """As :meth:`Client.command`."""
        return await self.send(requests.command(self._path(workload), action, kind, key, details))

    async def preview(
        self,
        workload: WorkloadRef,
        action: Action | ActionName,
        kind: str | None = None,
        **details: object,
    ) -> PreviewJson:
        """As :meth:`Client.preview`."""
        return await self.send(requests.preview(self._path(workload), action, kind, details))

    async def outcome(self, command: CommandJson, timeout: float) -> CommandJson:
        """As :meth:`Client.outcome`."""
        deadline = time.monotonic() + timeout
        while command["state"] == "Waiting":
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"command {command['id']} has no result yet")
            await asyncio.sleep(requests.POLL_SECONDS)
            command = await self.send(requests.command_result(command["id"]))
        return command

    async def stop_queue(
        self,
        name: str,
        namespace: str | None = None,
        *,
        drain: bool = False,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> QueueStopJson:
        """As :meth:`Client.stop_queue`."""
        path = requests.queue_path(name, namespace)
        return await self.send(requests.stop_queue(path, reason, drain=drain, dry_run=dry_run))

    async def resume_queue(
        self,
        name: str,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> QueueStopJson:
        """As :meth:`Client.resume_queue`."""
        path = requests.queue_path(name, namespace)
        return await self.send(requests.resume_queue(path, reason, dry_run=dry_run))

    # ---- Subscriptions

    async def receivers(self) -> ReceiverPageJson:
        """As :meth:`Client.receivers`."""
        return await self.send(requests.receivers())

    def subscriptions(self, *, everyone: bool = False) -> AsyncIterator[SubscriptionJson]:
        """As :meth:`Client.subscriptions`."""
        return self.objects(requests.subscriptions(everyone=everyone))

    async def subscribe(
        self,
        receiver: str,
        *,
        namespace: str | None = None,
        queue: str | None = None,
        events: Sequence[str] = (),
        digest: bool = False,
    ) -> SubscriptionJson:
        """As :meth:`Client.subscribe`."""
        return await self.send(
            requests.subscribe(receiver, namespace, queue, events, digest=digest)
        )

    async def unsubscribe(self, number: int, *, dry_run: bool = False) -> None:
        """As :meth:`Client.unsubscribe`."""
        await self.send(requests.unsubscribe(number, dry_run=dry_run))

    # ---- Events

    async def position(self) -> int:
        """As :meth:`Client.position`."""
        async with aclosing(self._blocks(requests.events(None, {}, follow=False))) as blocks:
            async for block in blocks:
                return block.id
        raise requests.no_position()

    async def events(self, after: int, **filters: Unpack[EventFilters]) -> list[EventJson]:
        """As :meth:`Client.events`."""
        from queuectl.client.stream import ExistingSteps

        steps = ExistingSteps()
        async with aclosing(self._blocks(requests.events(after, filters, follow=False))) as blocks:
            async for block in blocks:
                steps.add(block)
        return steps.complete()

    async def watch(
        self, after: int | None = None, **filters: Unpack[EventFilters]
    ) -> AsyncIterator[StreamEvent]:
        """As :meth:`Client.watch`."""
        from queuectl.client.stream import Following

        begin = await self.position() if after is None else after
        async with aclosing(self._follow(Following(begin, filters))) as steps:
            async for step in steps:
                yield step

    async def wait(
        self,
        workload: WorkloadRef,
        until: str,
        timeout: float | None = None,
        kind: str | None = None,
    ) -> WorkloadJson:
        """As :meth:`Client.wait`."""
        from queuectl.client.stream import Following, StateWait

        waiting = StateWait(until, timeout)
        position = await self.position()
        current = await self.workload(workload, kind)
        if waiting.reached(current["state"]):
            return current
        following = Following(position, {"uid": current["uid"]}, waiting.deadline)
        try:
            async with aclosing(self._follow(following)) as steps:
                async for step in steps:
                    state = step.data.get("toState")
                    if step.event == "reset" or waiting.reached(state):
                        current = await self.workload(current)
                        if step.event == "step" or waiting.reached(current["state"]):
                            break
        except WaitTimeout as error:
            raise waiting.late(current) from error
        return current

    # ---- The connection

    def _path(self, workload: WorkloadRef) -> str:
        named = isinstance(workload, str) and "/" not in workload
        return requests.workload_path(workload, self.options.default_namespace() if named else "")

    async def _answer(self, request: Request[Any]) -> HttpAnswer:
        """The answer, with a new token if the server does not accept the one that was sent."""
        async with self._opened(request) as response:
            return await self._read(response)

    @asynccontextmanager
    async def _opened(
        self, request: Request[Any], silence: float | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """The response, whose body is not read yet."""
        from queuectl.client import http

        with http.transport_errors(self.options):
            arguments = http.request_arguments(request, self._login, self.options, silence)
            async with self._http.stream(**arguments) as response:
                if response.status_code != http.UNAUTHORIZED:
                    yield response
                    return
                refused = await self._read(response)
            if not await asyncio.to_thread(self._login.renew, self.options.server):
                check(refused)
            arguments = http.request_arguments(request, self._login, self.options, silence)
            async with self._http.stream(**arguments) as response:
                yield response

    async def _read(self, response: httpx2.Response) -> HttpAnswer:
        from queuectl.client import http

        reader = http.reader_of(response, time.monotonic())
        async for chunk in response.aiter_bytes():
            reader.add(chunk, time.monotonic())
        return reader.answer()

    async def _blocks(
        self, request: Request[None], silence: float | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """The blocks of one connection, until it ends."""
        from queuectl.client import http
        from queuectl.client.stream import EventDecoder

        async with self._opened(request, silence) as response:
            if response.status_code >= http.NOT_A_STREAM:
                check(await self._read(response))
            http.check_stream(response)
            decoder = EventDecoder(str(response.url))
            async for chunk in response.aiter_bytes():
                for block in decoder.add(chunk):
                    yield block

    async def _follow(self, following: Following) -> AsyncGenerator[StreamEvent, None]:
        """The blocks of all connections."""
        while True:
            silence = following.silence()
            try:
                async with aclosing(self._blocks(following.request(), silence)) as blocks:
                    async for block in blocks:
                        if following.received(block):
                            yield block
                        if following.shortens():
                            break
                following.ended()
            except ClientError as error:
                following.interrupted(error)
            await asyncio.sleep(following.pause)
