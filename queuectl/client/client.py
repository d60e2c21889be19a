"""The synchronous client. Requests, decoders, retries and streams are in the modules that do no I/O."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
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


class Client:
    """A connection to the server. Use it as a context manager, or close it. Methods raise :class:`ClientError`.

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
        transport: httpx2.BaseTransport | None = None,
        **named: Unpack[OptionValues],
    ) -> None:
        """Without arguments, the client uses the same variables of the environment and the same kubeconfig as the command line.

        Args:
            server: address of the REST API; None = ``QUEUECTL_SERVER``.
            options: all options at once; the environment is not read.
            retries: further attempts of a request that can be repeated.
            timeout: seconds in which the server must begin to answer.
            transport: of the HTTP library, instead of a connection.
            named: see :class:`ClientOptions`.

        Raises:
            InvalidOption: an option is wrong.
        """
        from queuectl.client import http

        self.options = options or ClientOptions.from_environment(server=server, **named)
        self.options.check()
        self._retries = retries
        self._login = self.options.login()
        self._http = http.sync_client(self.options, timeout, transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    # ---- Any request

    def send(self, request: Request[T]) -> T:
        """The answer to a request. A request that can be repeated is sent again where that can help."""
        attempts = Attempts(self._retries, repeatable=request.repeatable)
        while True:
            try:
                return request.decoded(self._answer(request))
            except ClientError as error:
                pause = attempts.pause(error)
                if pause is None:
                    raise
            time.sleep(pause)

    def get(self, path: str, /, **query: object) -> Json:
        """A JSON object, for a path of the API that has no method here."""
        return self.send(requests.get(path, **query))

    def text(self, path: str, /, **query: object) -> str:
        """An answer that is not JSON."""
        return self.send(requests.get_text(path, **query))

    def put(self, path: str, document: Json) -> Json:
        """Create or replace an object, for example a ClusterQueue."""
        return self.send(requests.put(path, document))

    def post(
        self, path: str, body: Json, timeout: float | None = None, key: str | None = None
    ) -> Json:
        """Send a body.

        Args:
            path: of the request.
            body: its content.
            timeout: seconds in which the server must begin to answer; None = that of the client.
            key: idempotency key, for a top-up or a command, with which retries are safe; None = no retries.
        """
        return self.send(requests.post(path, body, timeout, key))

    def delete(self, path: str, version: str | None = None, *, dry_run: bool = False) -> None:
        """Delete one object. ``version``: the version that it must have; None = any. ``dry_run``: change nothing."""
        self.send(requests.delete(path, version, dry_run=dry_run))

    def pages(self, listing: Listing[Any]) -> Iterator[Json]:
        """The pages of a list, each requested when it is needed."""
        plan = listing.pages()
        while (request := plan.request()) is not None:
            body = self.send(request)
            plan.received(body)
            yield body

    def objects(self, listing: Listing[T]) -> Iterator[T]:
        """The objects of a list, page by page."""
        for body in self.pages(listing):
            yield from body["items"]

    # ---- Workloads and nodes

    def workloads(self, **filters: Unpack[WorkloadFilters]) -> Iterator[WorkloadJson]:
        """All workloads that match."""
        return self.objects(requests.workloads(filters))

    def workload(self, workload: WorkloadRef, kind: str | None = None) -> WorkloadJson:
        """One workload: ``NAME``, ``NAMESPACE/NAME``, or a workload to read again. ``kind``: if several jobs have the name."""
        return self.send(requests.workload(self._path(workload), kind))

    def explain(self, workload: WorkloadRef, kind: str | None = None) -> ExplainJson:
        """Why a workload is pending, with suggested fixes, or where it runs."""
        return self.send(requests.explain(self._path(workload), kind))

    def eff(self, workload: WorkloadRef, kind: str | None = None) -> JobEfficiencyJson:
        """The use of a workload, running or finished: GPUs, CPU, memory, GPU-hours, cost and nodes."""
        return self.send(requests.efficiency(self._path(workload), kind))

    def history(self, workload: WorkloadRef, kind: str | None = None) -> Iterator[HistoryJson]:
        """The steps of a workload, the oldest first."""
        return self.objects(requests.history(self._path(workload), kind))

    def pods(self, workload: WorkloadRef, kind: str | None = None) -> Iterator[PodJson]:
        """The pods of a workload."""
        return self.objects(requests.pods(self._path(workload), kind))

    def nodes(self, **filters: Unpack[NodeFilters]) -> Iterator[NodeJson]:
        """All nodes that match."""
        return self.objects(requests.nodes(filters))

    # ---- Questions

    def what_if(self, **changes: Unpack[PlanChanges]) -> PlanJson:
        """The plan after all changes together, compared with the plan without them. Nothing is changed."""
        return self.send(requests.what_if(changes))

    def report(
        self,
        name: ReportName,
        by: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Json:
        """A report (docs/how-to/reports.md). ``since``, ``until``: a time of RFC 3339, or a duration before now, as ``24h``."""
        return self.send(requests.report(name, by, since, until))

    # ---- Commands

    def command(
        self,
        workload: WorkloadRef,
        action: Action | ActionName,
        *,
        kind: str | None = None,
        key: str | None = None,
        **details: object,
    ) -> CommandJson:
        """Ask the leader for an action. :meth:`outcome` waits for the result.

        Args:
            workload: as for :meth:`workload`.
            action: the action.
            kind: of the job, if several have the name.
            key: idempotency key: with the same key, the command is stored once. None = a new key, with which retries are safe.
            details: ``why``; ``priority`` and ``until``; ``queue`` of a move; ``check``, ``state`` and ``message`` of a check.
        """
        return self.send(requests.command(self._path(workload), action, kind, key, details))

    def preview(
        self,
        workload: WorkloadRef,
        action: Action | ActionName,
        kind: str | None = None,
        **details: object,
    ) -> PreviewJson:
        """The change, the cost and the effect of an action, without it. ``details``: as for :meth:`command`."""
        return self.send(requests.preview(self._path(workload), action, kind, details))

    def outcome(self, command: CommandJson, timeout: float) -> CommandJson:
        """The command when the leader has executed or refused it. Raises WaitTimeout after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while command["state"] == "Waiting":
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"command {command['id']} has no result yet")
            time.sleep(requests.POLL_SECONDS)
            command = self.send(requests.command_result(command["id"]))
        return command

    def stop_queue(
        self,
        name: str,
        namespace: str | None = None,
        *,
        drain: bool = False,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> QueueStopJson:
        """Stop a ClusterQueue, or with a namespace a LocalQueue. ``drain``: evict its gangs. ``dry_run``: change nothing."""
        path = requests.queue_path(name, namespace)
        return self.send(requests.stop_queue(path, reason, drain=drain, dry_run=dry_run))

    def resume_queue(
        self,
        name: str,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        reason: str | None = None,
    ) -> QueueStopJson:
        """Resume a stopped queue. ``dry_run``: change nothing."""
        path = requests.queue_path(name, namespace)
        return self.send(requests.resume_queue(path, reason, dry_run=dry_run))

    # ---- Subscriptions

    def receivers(self) -> ReceiverPageJson:
        """The receivers of events that you can use, and your verified email address."""
        return self.send(requests.receivers())

    def subscriptions(self, *, everyone: bool = False) -> Iterator[SubscriptionJson]:
        """Your subscriptions. ``everyone``: those of all users, for administrators."""
        return self.objects(requests.subscriptions(everyone=everyone))

    def subscribe(
        self,
        receiver: str,
        *,
        namespace: str | None = None,
        queue: str | None = None,
        events: Sequence[str] = (),
        digest: bool = False,
    ) -> SubscriptionJson:
        """Subscribe to the events of a namespace, of a ClusterQueue, or of your own jobs.

        Args:
            receiver: its name.
            namespace: whose events it selects.
            queue: ClusterQueue whose events it selects.
            events: types; none = all.
            digest: the events are sent together, from time to time.
        """
        return self.send(requests.subscribe(receiver, namespace, queue, events, digest=digest))

    def unsubscribe(self, number: int, *, dry_run: bool = False) -> None:
        """Delete a subscription by its id. ``dry_run``: change nothing."""
        self.send(requests.unsubscribe(number, dry_run=dry_run))

    # ---- Events

    def position(self) -> int:
        """The id of the newest event."""
        with closing(self._blocks(requests.events(None, {}, follow=False))) as blocks:
            for block in blocks:
                return block.id
        raise requests.no_position()

    def events(self, after: int, **filters: Unpack[EventFilters]) -> list[EventJson]:
        """The steps above an id that exist now, the oldest first. All of them, or NoAnswer is raised."""
        from queuectl.client.stream import ExistingSteps

        steps = ExistingSteps()
        with closing(self._blocks(requests.events(after, filters, follow=False))) as blocks:
            for block in blocks:
                steps.add(block)
        return steps.complete()

    def watch(
        self, after: int | None = None, **filters: Unpack[EventFilters]
    ) -> Iterator[StreamEvent]:
        """Steps as they happen, until you stop. A broken connection continues after the last step, and none is lost or repeated.

        Args:
            after: begin after this id; None = now.
            filters: each that is set must match.

        Yields:
            ``step``, and ``reset`` where the database was restored from a backup: read again whatever you keep.

        Raises:
            ClientError: the server has refused the request, or has not answered for a minute.
        """
        from queuectl.client.stream import Following

        begin = self.position() if after is None else after
        return self._follow(Following(begin, filters))

    def wait(
        self,
        workload: WorkloadRef,
        until: str,
        timeout: float | None = None,
        kind: str | None = None,
    ) -> WorkloadJson:
        """The workload when it is in a state.

        Args:
            workload: as for :meth:`workload`.
            until: ``running``, ``finished``, or another state.
            timeout: seconds; None = no limit. A wait can end up to a tenth of the time later.
            kind: of the job, if several have the name.

        Raises:
            WaitTimeout: it is not in the state in time.
            WorkloadEnded: it has finished, so it will not be in the state.
            InvalidOption: the state does not exist.
        """
        from queuectl.client.stream import Following, StateWait

        waiting = StateWait(until, timeout)
        # Before the workload is read, so that no step is lost in between.
        position = self.position()
        current = self.workload(workload, kind)
        if waiting.reached(current["state"]):
            return current
        following = Following(position, {"uid": current["uid"]}, waiting.deadline)
        try:
            with closing(self._follow(following)) as steps:
                for step in steps:
                    state = step.data.get("toState")
                    if step.event == "reset" or waiting.reached(state):
                        current = self.workload(current)
                        if step.event == "step" or waiting.reached(current["state"]):
                            break
        except WaitTimeout as error:
            raise waiting.late(current) from error
        return current

    # ---- The connection

    def _path(self, workload: WorkloadRef) -> str:
        named = isinstance(workload, str) and "/" not in workload
        return requests.workload_path(workload, self.options.default_namespace() if named else "")

    def _answer(self, request: Request[Any]) -> HttpAnswer:
        """The answer, with a new token if the server does not accept the one that was sent."""
        with self._opened(request) as response:
            return self._read(response)

    @contextmanager
    def _opened(
        self, request: Request[Any], silence: float | None = None
    ) -> Iterator[httpx2.Response]:
        """The response, whose body is not read yet."""
        from queuectl.client import http

        with http.transport_errors(self.options):
            arguments = http.request_arguments(request, self._login, self.options, silence)
            with self._http.stream(**arguments) as response:
                if response.status_code != http.UNAUTHORIZED:
                    yield response
                    return
                refused = self._read(response)
            if not self._login.renew(self.options.server):
                check(refused)
            arguments = http.request_arguments(request, self._login, self.options, silence)
            with self._http.stream(**arguments) as response:
                yield response

    def _read(self, response: httpx2.Response) -> HttpAnswer:
        from queuectl.client import http

        reader = http.reader_of(response, time.monotonic())
        for chunk in response.iter_bytes():
            reader.add(chunk, time.monotonic())
        return reader.answer()

    def _blocks(
        self, request: Request[None], silence: float | None = None
    ) -> Generator[StreamEvent, None, None]:
        """The blocks of one connection, until it ends."""
        from queuectl.client import http
        from queuectl.client.stream import EventDecoder

        with self._opened(request, silence) as response:
            if response.status_code >= http.NOT_A_STREAM:
                check(self._read(response))
            http.check_stream(response)
            decoder = EventDecoder(str(response.url))
            for chunk in response.iter_bytes():
                yield from decoder.add(chunk)

    def _follow(self, following: Following) -> Generator[StreamEvent, None, None]:
        """The blocks of all connections."""
        while True:
            silence = following.silence()
            try:
                with closing(self._blocks(following.request(), silence)) as blocks:
                    for block in blocks:
                        if following.received(block):
                            yield block
                        if following.shortens():
                            break
                following.ended()
            except ClientError as error:
                following.interrupted(error)
            time.sleep(following.pause)
