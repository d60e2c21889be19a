"""Starts a cluster in its folder: keys, components in order, roles, CRDs and nodes."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from queuectl.localcluster import certificates, components, installation, operators
from queuectl.localcluster.certificates import Authority, KeyPair
from queuectl.localcluster.client import START_SECONDS, Client, wait_until
from queuectl.localcluster.components import Component
from queuectl.localcluster.errors import ApiServerError, LocalClusterError, UnreachableError
from queuectl.localcluster.layout import write_kubeconfig
from queuectl.localcluster.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuectl.localcluster.build import Assets
    from queuectl.localcluster.layout import Layout
    from queuectl.localcluster.progress import StepProgress
    from queuectl.localcluster.spec import ClusterSpec
    from queuectl.localcluster.supervisor import KeeperHandle

_MANIFESTS = Path(__file__).parent / "manifests"


class Bootstrap:
    """The steps from an empty folder to a running cluster."""

    def __init__(
        self, layout: Layout, supervisor: KeeperHandle, assets: Assets, spec: ClusterSpec
    ) -> None:
        self._layout = layout
        self._supervisor = supervisor
        self._assets = assets
        self._spec = spec
        self._operators = operators.with_needs(spec.operators)

    def run(self, progress: StepProgress) -> Layout:
        """Start all components and wait until they are ready.

        Returns:
            The layout with the command lines of the components, so that they can be started again.

        Raises:
            LocalClusterError: A component ended or is not ready in time; the message ends with the last lines of its log.
        """
        layout, spec = self._layout, self._spec
        progress.step("Starting etcd", components.API_SERVER)
        self._make_identities()
        wanted = self._components()
        commands = {
            one.name: [str(self._assets.programs[one.name]), *one.arguments] for one in wanted
        }
        layout = layout.write(
            commands=commands,
            health={one.name: one.health for one in wanted},
            spec=asdict(spec),
        )
        layout = self._layout = installation.prepare(layout, self._operators)
        self._start([components.ETCD])

        if not spec.controllers:
            progress.step("Starting kube-apiserver")
            self._start([components.API_SERVER])
            return layout
        progress.step("Starting kube-apiserver", "controllers, scheduler and nodes")
        self._start([components.API_SERVER])
        client = admin(layout)
        try:
            progress.step(f"Starting controllers, scheduler and {spec.node_count} nodes")
            self._set_up(client)
        finally:
            client.close()
        return layout

    def _components(self) -> list[Component]:
        layout, spec = self._layout, self._spec
        lease = spec.effective_lease_seconds
        wanted = [components.etcd(layout, fsync=spec.fsync), components.api_server(layout, spec)]
        if not spec.controllers:
            return wanted
        return [
            *wanted,
            components.controller_manager(layout, spec),
            components.scheduler(layout, spec),
            components.kwok(layout, _MANIFESTS / "stages.yaml", lease_seconds=lease),
        ]

    def _make_identities(self) -> None:
        """Create CAs, server certificates, and a kubeconfig for each component."""
        pki = self._layout.pki
        authority, store, front_proxy = (
            Authority.create("queuectl-localcluster"),
            Authority.create("queuectl-localcluster-etcd"),
            Authority.create("queuectl-localcluster-front-proxy"),
        )
        authority.pair.save(pki / "ca.crt", pki / "ca.key")
        store.pair.save(pki / "etcd-ca.crt", pki / "etcd-ca.key")
        store.server("etcd").save(pki / "etcd.crt", pki / "etcd.key")
        front_proxy.pair.save(pki / "front-proxy-ca.crt", pki / "front-proxy-ca.key")
        front_proxy.client(components.FRONT_PROXY).save(
            pki / "front-proxy.crt", pki / "front-proxy.key"
        )
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.0.0.1"]
        authority.server("kube-apiserver", names).save(pki / "server.crt", pki / "server.key")
        certificates.signing_key().save(pki / "service-account.pub", pki / "service-account.key")
        for name, identity in components.IDENTITIES.items():
            pair = authority.client(identity.user, identity.groups)
            if name == "admin":
                pair.save(pki / "admin.crt", pki / "admin.key")
            write_kubeconfig(
                self._layout.kubeconfig(name),
                cluster=self._layout.name,
                server=self._layout.server,
                authority=authority.pair.certificate,
                user=identity.user,
                identity=pair,
            )

    def _start(self, names: Iterable[str], *, wait: bool = True) -> None:
        for name in names:
            start(self._layout, self._supervisor, name)
        if wait:
            for name in names:
                wait_healthy(self._layout, self._supervisor, name)

    def _set_up(self, client: Client) -> None:
        client.apply_file(_MANIFESTS / "kwok-rbac.yaml")
        rest = [components.CONTROLLER_MANAGER, components.SCHEDULER, components.KWOK]
        self._start(rest, wait=False)
        for one in self._operators:
            installation.apply(self._layout, client, one)
            self._start([one.name], wait=False)
            rest.append(one.name)
        nodes = Nodes(client)
        names = [name for spec in self._spec.nodes for name in nodes.create(spec, wait_seconds=0)]
        for name in rest:
            wait_healthy(self._layout, self._supervisor, name)
        for one in self._operators:
            installation.wait_webhooks(self._layout, one)
        # The API server refuses pods in a namespace without a ServiceAccount.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_until(
            lambda: client.exists(account),
            "the ServiceAccount of namespace default",
            START_SECONDS,
        )
        nodes.wait_ready(names, seconds=START_SECONDS)


def admin(layout: Layout) -> Client:
    """A client with all rights."""
    return Client(layout.server, (layout.pki / "ca.crt").read_bytes(), admin_pair(layout))


def admin_pair(layout: Layout) -> KeyPair:
    """The client certificate of the administrator, which has all rights."""
    pki = layout.pki
    return KeyPair((pki / "admin.crt").read_bytes(), (pki / "admin.key").read_bytes())


def start(layout: Layout, supervisor: KeeperHandle, name: str) -> None:
    """Start one component with its recorded command line."""
    scratch = layout.home / "tmp"
    # A component inherits nothing of the environment, for example no proxy and no setting of Go.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(scratch), "TMPDIR": str(scratch)}
    # This saves a seventh of the API server's CPU time during the start, for 170 MB more memory. Above half of the memory of the
    # machine, a component collects its garbage more often instead of taking more.
    environment |= {"GOGC": "400", "GOMEMLIMIT": f"{_machine_memory() // 2}B"}
    if name in operators.OPERATORS and (proxy := layout.description["spec"]["proxy"]):
        environment["HTTP_PROXY"] = f"http://{proxy}"
    log = layout.logs / f"{name}.log"
    supervisor.start(
        name, layout.description["commands"][name], env=environment, cwd=layout.home, log=log
    )


def _machine_memory() -> int:
    """Bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def wait_healthy(layout: Layout, supervisor: KeeperHandle, name: str) -> None:
    """Wait until a component is ready.

    Raises:
        LocalClusterError: It ended, or is not ready in time; the message ends with the last lines of its log.
    """
    deadline = time.monotonic() + START_SECONDS
    with contextlib.closing(Probe(layout, name)) as probe:
        while (problem := probe.problem()) is not None:
            program = supervisor.programs()[name]
            if not program.running or time.monotonic() > deadline:
                state = (
                    "is not ready"
                    if program.running
                    else f"ended with exit code {program.returncode}"
                )
                lines = (
                    (layout.logs / f"{name}.log")
                    .read_text(errors="replace")
                    .strip()
                    .splitlines()[-8:]
                )
                raise LocalClusterError(
                    "\n  ".join([f"{name} {state} ({problem}); end of its log:", *lines])
                )
            time.sleep(0.02)


class Probe:
    """Reads the health of one component."""

    def __init__(self, layout: Layout, name: str) -> None:
        url, pki = layout.description["health"][name], layout.pki
        server, slash, path = url.rpartition("/")
        self._path = slash + path
        ca, who = ("etcd-ca", "etcd") if name == components.ETCD else ("ca", "admin")
        pair = KeyPair((pki / f"{who}.crt").read_bytes(), (pki / f"{who}.key").read_bytes())
        self._client = Client(server, (pki / f"{ca}.crt").read_bytes(), pair)

    def problem(self) -> str | None:
        """None if the component is ready, otherwise its problem."""
        try:
            self._client.text(self._path)
        except (ApiServerError, UnreachableError) as error:
            return str(error)
        return None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
