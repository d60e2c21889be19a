"""`queuectl localcluster`: a control plane that runs until you stop it."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from queuectl.localcluster import build, layout, progress, versions
from queuectl.localcluster.cluster import LocalCluster, take_down
from queuectl.localcluster.errors import LocalClusterError, UnknownClusterError, cause
from queuectl.localcluster.exporter import Exporters
from queuectl.localcluster.nodes import NodeSpec
from queuectl.localcluster.operators import OPERATORS, TRAINING_OPERATOR
from queuectl.localcluster.spec import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(help="Run a Kubernetes control plane on this machine.", no_args_is_help=True)

Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the cluster.")]
DEFAULT_NAME = "queuectl"
# Exit codes, as of the other commands of queuectl.
_FAILURE = 1
_BAD_INPUT = 2
_NOT_FOUND = 3


@contextlib.contextmanager
def _fails_with_a_message() -> Iterator[None]:
    """An error of a cluster, or of its files, ends the command with a message."""
    try:
        yield
    except UnknownClusterError as error:
        _fail(str(error), _NOT_FOUND)
    except LocalClusterError as error:
        _fail(str(error), _FAILURE)
    except OSError as error:
        _fail(cause(error), _FAILURE)


@app.command()
@_fails_with_a_message()
def up(
    name: Name = DEFAULT_NAME,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Nodes: blocks, racks (per block), hosts (per rack), gpus, devices, cpu, memory, pods, product.",
        ),
    ] = "",
    *,
    fsync: Annotated[bool, typer.Option(help="etcd waits for the disk.")] = True,
    operators: Annotated[
        str,
        typer.Option(metavar="NAME,...", help=f"Operators of job kinds: {', '.join(OPERATORS)}."),
    ] = TRAINING_OPERATOR,
    foreground: Annotated[
        bool, typer.Option(help="Stay in the foreground, and stop the cluster at Ctrl-C.")
    ] = False,
) -> None:
    """Start a cluster.

    The first start builds the programs, which takes about five minutes on two cores.
    """
    try:
        names = tuple(filter(None, operators.split(",")))
        spec = ClusterSpec(nodes=(NodeSpec.parse(nodes),), fsync=fsync, operators=names)
    except ValueError as error:
        _fail(str(error), _BAD_INPUT)
    cluster = LocalCluster.start(spec, name=name, progress=progress.for_terminal())
    if foreground:
        with cluster:
            _explain(cluster)
            Console(stderr=True).print("Press Ctrl-C to stop the cluster.")
            _wait_for_interrupt()
            Console(stderr=True).print("Stopping the cluster.")
    else:
        cluster.detach()
        _explain(cluster)


@app.command()
@_fails_with_a_message()
def down(
    name: Name = DEFAULT_NAME,
    *,
    every: Annotated[bool, typer.Option("--all", help="Stop all clusters.")] = False,
) -> None:
    """Stop a cluster and remove its files."""
    for one in layout.names() if every else [name]:
        if not take_down(one):
            raise layout.unknown(one)
        Console().print(f"Cluster {one} is stopped.", highlight=False)


@app.command()
@_fails_with_a_message()
def status() -> None:
    """Show the clusters of this machine and their health."""
    names = layout.names()
    if not names:
        Console().print("No clusters.")
        return
    table = Table("NAME", "SERVER", "NODES", "COMPONENTS", box=None)
    for name in names:
        place = layout.find(name)
        table.add_row(name, place.server if place is not None else "-", *_state(name))
    Console().print(table)


@app.command()
@_fails_with_a_message()
def exporters(
    name: Name = DEFAULT_NAME,
    port: Annotated[int, typer.Option(metavar="PORT", help="Loopback port to listen on.")] = 9400,
) -> None:
    """Simulate the GPU exporters of a cluster's nodes.

    The exporter of each node is at /metrics/NODE, until you press Ctrl-C.
    """
    cluster = LocalCluster.find(name)
    with Exporters(port=port) as simulated, simulated.following(cluster.client):
        for node, gpus in cluster.nodes.gpus().items():
            simulated.add_node(node, gpus)
        Console(stderr=True).print(f"Listening on {simulated.address}.", highlight=False)
        _wait_for_interrupt()


@app.command("build")
@_fails_with_a_message()
def build_programs(
    *,
    operators: Annotated[
        bool, typer.Option("--operators", help="Include the operators of all job kinds.")
    ] = False,
) -> None:
    """Build all programs, and check the cached ones.

    The programs include Prometheus. The check compares each byte.
    """
    own = [operator.unit for operator in OPERATORS.values()] if operators else []
    units = {unit.key: unit for unit in (*versions.ALL_UNITS, *own)}
    shown = progress.for_terminal()
    assets = build.ensure(shown, thorough=True, units=list(units.values()))
    shown.finish("All programs are built.")
    for name, path in assets.programs.items():
        Console().print(f"{name:<26} {path}", highlight=False, soft_wrap=True)


def _state(name: str) -> tuple[str, str]:
    try:
        cluster = LocalCluster.find(name)
        try:
            ill = [f"{part}: {problem}" for part, problem in cluster.health().items() if problem]
            return str(len(cluster.nodes.names())), "; ".join(ill) or "healthy"
        finally:
            cluster.client.close()
    except LocalClusterError as error:
        return "-", str(error)


def _explain(cluster: LocalCluster) -> None:
    kubectl = cluster.kubectl or "kubectl"
    lines = [
        f"export KUBECONFIG={cluster.kubeconfig}",
        f"{kubectl} get nodes -L topology.queuectl.dev/rack",
        f"queuectl localcluster down --name {cluster.name}",
    ]
    Console().print("Commands to try:\n  " + "\n  ".join(lines), highlight=False, soft_wrap=True)


def _wait_for_interrupt() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def _fail(message: str, code: int) -> NoReturn:
    Console(stderr=True).print(f"error: {message}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(code)
