"""``queuectl serve``: the controller, its REST API and its metrics in one process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from queuectl.cli.program import FormatOption, LevelOption, configure_log, tune_interpreter

if TYPE_CHECKING:
    from queuectl.api.auth.layers import AuthenticationLayer
    from queuectl.api.auth.start import Offer
    from queuectl.api.connections import ConnectionLimits
    from queuectl.control.composition import ProcessComponents
    from queuectl.control.leader.schedule import Job
    from queuectl.control.notifications import Notifications
    from queuectl.control.settings import Settings
    from queuectl.domain.containment import Containment
    from queuectl.telemetry.metrics import MetricsRecorder
    from queuectl.web.log_streams import PodLogs


def serve_command(
    log_format: FormatOption = "auto",
    log_level: LevelOption = "info",
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="Observe a cluster that Kueue manages, and report. Starts nothing, and writes nothing but a Lease. The same as QUEUECTL_SHADOW=true.",
        ),
    ] = False,
) -> None:
    """Run the controller, its REST API and its metrics. docs/reference/settings.md lists the environment variables with its settings."""
    from queuectl.control.settings import InvalidSettings, read_settings
    from queuectl.domain.errors import BadInput, QueuectlError
    from queuectl.domain.words import printable

    try:
        settings = read_settings(shadow=shadow)
    except InvalidSettings as error:
        for sentence in error.sentences:
            typer.echo(sentence, err=True)
        raise typer.Exit(2) from error
    configure_log(log_format, log_level)
    failures: list[BaseException] = []
    try:
        asyncio.run(_serve(settings))
    except* QueuectlError as group:
        failures = _leaves(group)
    for failure in failures:
        typer.echo(printable(f"queuectl serve: {failure}"), err=True)
    if failures:
        raise typer.Exit(2 if all(isinstance(each, BadInput) for each in failures) else 1)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


async def _serve(settings: Settings) -> None:
    """Serve until a signal. A start is canceled: it can wait for hours, for example while another process migrates the database."""
    stop, started = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(_served(settings, stop, started))

    def signaled() -> None:
        if not started.is_set() and not stop.is_set():
            serving.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signaled)
    try:
        await serving
    except asyncio.CancelledError:
        if not stop.is_set():
            raise


async def _served(settings: Settings, stop: asyncio.Event, started: asyncio.Event) -> None:
    """Start, set ``started``, and serve until ``stop`` is set."""
    from queuectl.api.app import create_app, create_metrics_app
    from queuectl.api.auth.audit import forget_old
    from queuectl.api.health_thread import HealthListener
    from queuectl.api.routes.events import StreamLimit
    from queuectl.api.server import WebServer
    from queuectl.control.composition import ServeComponents, controller
    from queuectl.control.leader.schedule import supervised
    from queuectl.control.listen_address import ListenAddress
    from queuectl.control.progress import end_if_stalled
    from queuectl.control.sources import usage_sources
    from queuectl.distribution import version
    from queuectl.shadow.composition import shadow
    from queuectl.telemetry.tracing import traced_requests
    from queuectl.web.app import add_dashboard

    offered = _offer(settings)
    async with (
        shadow(settings) if settings.shadow else controller(settings) as parts,
        _authenticated(settings, offered, parts.metrics) as authenticated,
        _certificates(settings, offered, parts.containment) as keep_certificate,
        _pod_logs(settings) as logs,
    ):
        registry = parts.metrics.registry
        leads = parts if isinstance(parts, ServeComponents) else None
        notifications = leads.notifications if leads is not None else None
        app = create_app(
            parts.store,
            parts,
            registry,
            leads,
            cluster_reader=leads,
            authenticated=authenticated,
            streams=StreamLimit(settings.streams, settings.streams_per_caller),
            owner=settings.configuration_owner,
            sources=usage_sources(settings),
            receivers=notifications.receivers if notifications is not None else None,
        )
        signs_in = authenticated is not None
        add_dashboard(
            app,
            parts.store,
            app.state.guard,
            leads,
            leads,
            signs_in=signs_in,
            in_shadow=settings.shadow,
            links=settings.link_templates,
            pod_logs=logs,
            documentation_url=settings.documentation_url,
        )
        servers = [
            WebServer(
                app,
                offered.address,
                offered.certificate,
                offered.proxies,
                _limits(settings),
                parts.metrics.callers.closed,
            ),
            WebServer(create_metrics_app(registry), ListenAddress.parse(settings.metrics_listen)),
        ]
        health = HealthListener(ListenAddress.parse(settings.health_listen), parts)
        tracing = traced_requests(app, settings.otlp_endpoint, version())
        async with health.serving(), tracing, asyncio.TaskGroup() as group:
            tasks = [group.create_task(server.run()) for server in servers]
            jobs: dict[str, Job] = {
                "audit": lambda: forget_old(parts.store.audit, settings.audit_days),
                "registration": lambda: parts.registration.keep(parts.metrics.database_answered),
                "certificate": keep_certificate,
                "end if stalled": lambda: end_if_stalled(parts.stalled),
                **_aggregated(settings, parts),
                **_delivery(notifications),
            }
            for name, job in jobs.items():
                supervising = supervised(name, job, parts.containment)
                tasks.append(group.create_task(supervising, name=name))
            tune_interpreter()
            listening = f"API {servers[0].url}  metrics {servers[1].url}  health {health.url}"
            typer.echo(listening, err=True)
            started.set()
            await parts.run(stop)
            app.state.feed.close()
            if logs is not None:
                logs.close()
            for task in tasks:
                task.cancel()


def _limits(settings: Settings) -> ConnectionLimits:
    """Of the connections to the REST API. Raises the limit of open files of this process."""
    from queuectl.api.connections import ConnectionLimits, connections_within, raise_limit

    return ConnectionLimits(
        most=connections_within(raise_limit(), settings.connections),
        of_address=settings.connections_per_address,
        of_caller=settings.connections_per_caller,
    )


def _offer(settings: Settings) -> Offer:
    from queuectl.api.auth.start import offer

    return offer(
        settings.listen,
        auth=settings.auth,
        cert_file=settings.tls_cert_file,
        key_file=settings.tls_key_file,
        secret=settings.tls_secret,
        tls=settings.tls == "on",
        trusted_proxies=settings.trusted_proxies,
        issuer=settings.oidc.issuer,
    )


@asynccontextmanager
async def _certificates(
    settings: Settings, offered: Offer, containment: Containment
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Write the certificate to its files if queuectl creates it. Yields the job that renews it."""
    from queuectl.control.certificate_keeper import own_certificate

    async def nothing() -> None:
        """An administrator renews it."""

    if not settings.tls_secret or offered.certificate is None:
        yield nothing
        return
    async with own_certificate(
        settings.kubeconfig,
        settings.namespace,
        settings.tls_secret,
        settings.tls_authority,
        settings.tls_hosts,
        offered.certificate,
        containment,
    ) as keeper:
        yield keeper.run


def _delivery(notifications: Notifications | None) -> dict[str, Job]:
    """The tasks that deliver events; none without receivers, and in shadow mode."""
    if notifications is None:
        return {}
    return {"notifications": notifications.deliver, "receivers": notifications.follow_file}


def _aggregated(settings: Settings, parts: ProcessComponents) -> dict[str, Job]:
    """The task of the API that serves workloads to kubectl; none if it is off."""
    from queuectl.control.composition import ServeComponents
    from queuectl.visibility.service import VisibilitySettings, serve

    if not settings.visibility_listen:
        return {}
    served = VisibilitySettings(
        settings.visibility_listen,
        settings.namespace,
        settings.visibility_secret,
        settings.visibility_hosts,
        settings.kubeconfig,
    )
    diagnoser = parts if isinstance(parts, ServeComponents) else None
    return {"aggregated API": lambda: serve(served, parts.store, diagnoser, parts.containment)}


@asynccontextmanager
async def _pod_logs(settings: Settings) -> AsyncIterator[PodLogs | None]:
    """Logs of containers on pages; None without the opt-in."""
    from queuectl.control.composition import pod_logs
    from queuectl.web.log_streams import LogLimits, PodLogs

    async with pod_logs(settings) as source:
        limits = LogLimits(streams=settings.log_streams, of_caller=settings.log_streams_per_caller)
        yield PodLogs(source, limits) if source is not None else None


@asynccontextmanager
async def _authenticated(
    settings: Settings, offered: Offer, metrics: MetricsRecorder
) -> AsyncIterator[AuthenticationLayer | None]:
    """Authentication of callers; None = the API has none."""
    from queuectl.api.auth.authentication import OpenPaths
    from queuectl.api.auth.layers import AuthenticationLayer
    from queuectl.api.oidc.access import with_issuer
    from queuectl.control.composition import access
    from queuectl.web.app import OPEN, SIGN_IN

    if not offered.authenticated:
        yield None
        return
    async with access(settings) as cluster, with_issuer(cluster, settings.oidc) as (known, login):
        yield AuthenticationLayer(
            known,
            login=login,
            secure=offered.secure,
            per_second=settings.requests_per_second,
            burst=settings.request_burst,
            open_paths=OpenPaths(OPEN, SIGN_IN),
            note_caller=metrics.callers.note,
        )
