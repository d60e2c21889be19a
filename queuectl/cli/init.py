"""``queuectl init``: proposes configuration for the nodes of a cluster, as YAML with comments. It applies nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import typer

from queuectl.cli import extras
from queuectl.cli.client import DEFAULT_SERVER, Json, Server, connect
from queuectl.cli.config import stored
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.extras import Extra
from queuectl.cli.options import files_option
from queuectl.cli.targets import Target, is_configuration, read_objects
from queuectl.client.errors import ClientError
from queuectl.devices.pools import node_devices
from queuectl.domain.devices import DeviceClass, DeviceInventory, PoolSlice
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.records import DeviceClassRecord, SliceRecord
from queuectl.domain.words import counted
from queuectl.objects.configuration.diff import differences
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.documents import Document
from queuectl.objects.errors import Address, DocumentError, RequestError
from queuectl.objects.files.records import read_record
from queuectl.objects.kubernetes.nodes import read_node
from queuectl.objects.kubernetes.wire import WireNode
from queuectl.objects.names import is_name
from queuectl.objects.proposal.configuration import Proposal, as_yaml, propose

_NODES = "/api/v1/nodes"
_NAMESPACES = "/api/v1/namespaces"
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


class _PublishedDevices(msgspec.Struct):
    """The part of a ResourceSlice that counts its devices."""

    driver: str = ""
    devices: list[Any] | None = None


class _SliceDevices(msgspec.Struct):
    spec: _PublishedDevices


@dataclass
class _Found:
    """The contents of the cluster or of the files.

    Attributes:
        source: where it was read, in words.
        namespaces: their names; None = not known.
        devices: the number of devices that each driver publishes for dynamic resource allocation.
        slices: these devices.
        classes: the DeviceClasses by name.
        existing: configuration objects.
    """

    source: str
    nodes: list[Node] = field(default_factory=list)
    namespaces: set[str] | None = None
    devices: Counter[str] = field(default_factory=Counter)
    slices: list[PoolSlice] = field(default_factory=list)
    classes: dict[str, DeviceClass] = field(default_factory=dict)
    existing: list[Json] = field(default_factory=list)


def init_command(
    files: Annotated[
        list[str] | None,
        files_option(" with Nodes, instead of the cluster"),
    ] = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Namespace that gets a LocalQueue. Can be repeated. Default: that of the kubeconfig's context.",
        ),
    ] = None,
    queue: Annotated[
        str,
        typer.Option(metavar="NAME", help="Name of the ClusterQueue and of the LocalQueues."),
    ] = "main",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Propose flavors, topologies and a queue for the nodes of a cluster.

    Prints YAML with comments and changes nothing: review it, then run `queuectl apply`. Reads the cluster of the kubeconfig, or files
    as `kubectl get nodes -o yaml` prints them. If an object exists already and differs, shows the differences, prints no YAML, and
    ends with exit code 4.
    """
    chosen = namespaces or [default_namespace()]
    for name in (queue, *chosen):
        if not is_name(name):
            raise CommandFailed(f"{name!r} is not a name", Exit.BAD_INPUT)
    found = _of_files(files) if files else _of_cluster(server)
    nodes, left_out = _with_devices(found)
    proposal = propose(nodes, chosen, queue, left_out)
    _require_nodes(found, proposal)
    bodies = [entry.body for entry in proposal.entries]
    _refuse_existing(bodies, found.existing)
    for warning in _warnings(found, proposal, chosen, queue):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(as_yaml(proposal, found.source), nl=False)


# ---- reading


def _of_files(files: Sequence[str]) -> _Found:
    found = _Found(", ".join("stdin" if name == "-" else name for name in files))
    for document in read_objects(files):
        if is_configuration(document):
            found.existing.append(validate(document)[0])
        elif document.kind == "Node":
            found.nodes.append(_node(document))
        elif document.kind == "ResourceSlice":
            _count_devices(document, found)
        elif document.kind == "DeviceClass":
            _add(document, found)
    return found


def _node(document: Document) -> Node:
    try:
        return read_node(document.convert(WireNode)).node
    except RequestError as error:
        raise document.error("", str(error)) from None


def _of_cluster(server: str) -> _Found:
    """The contents of the kubeconfig's cluster, and the configuration of the server if it answers."""
    if extras.missing(Extra.SERVER):
        hint = extras.install_hint(Extra.SERVER)
        message = f"to read the cluster, init {hint}; or run kubectl get nodes -o json | queuectl init -f -"
        raise CommandFailed(message)
    found = asyncio.run(_read_cluster())
    try:
        with connect(server) as client:
            found.existing = stored(client)
    except ClientError as error:
        typer.echo(f"warning: not compared with existing configuration: {error}", err=True)
    return found


async def _read_cluster() -> _Found:
    from queuectl.cli.reads import cluster_connection, list_items
    from queuectl.cluster.client import Api
    from queuectl.domain.errors import ObjectGone

    api = await Api.connect(cluster_connection())
    try:
        cluster_objects = _Found("the cluster")
        cluster_objects.nodes = [
            read_node(msgspec.convert(item, WireNode, strict=False)).node
            for item in await list_items(api, _NODES)
        ]
        cluster_objects.namespaces = {
            item["metadata"]["name"] for item in await list_items(api, _NAMESPACES)
        }
        try:
            for number, item in enumerate(await list_items(api, _SLICES)):
                _count_devices(_document(item, "ResourceSlice", number), cluster_objects)
            for number, item in enumerate(await list_items(api, _CLASSES)):
                _add(_document(item, "DeviceClass", number), cluster_objects)
        except ObjectGone:
            pass  # the server has no dynamic resource allocation
        return cluster_objects
    finally:
        await api.close()


def _document(listed: Mapping[str, Any], kind: str, number: int) -> Document:
    """An item of a list, which does not name its kind."""
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, **listed}
    return Document(Address("the cluster", number + 1, 0), body)


def _count_devices(document: Document, cluster_objects: _Found) -> None:
    spec = document.convert(_SliceDevices).spec
    cluster_objects.devices[spec.driver] += len(spec.devices or ())
    with suppress(DocumentError):  # it has no complete pool
        _add(document, cluster_objects)


def _add(document: Document, cluster_objects: _Found) -> None:
    """Keep a ResourceSlice or a DeviceClass. Can raise DocumentError."""
    record = read_record(document)
    if isinstance(record, SliceRecord):
        cluster_objects.slices.append(record.content)
    elif isinstance(record, DeviceClassRecord):
        cluster_objects.classes[record.name] = record.content


# ---- judging


def _with_devices(cluster_objects: _Found) -> tuple[list[Node], list[str]]:
    """The nodes with the devices that a DeviceClass selects as resources, and a sentence for each driver with others."""
    nodes: list[Node] = cluster_objects.nodes
    remaining: Mapping[str, int] = cluster_objects.devices
    if cluster_objects.slices and cluster_objects.classes and not extras.missing(Extra.SERVER):
        from queuectl.objects.proposal.devices import with_devices

        fleet = Fleet(tuple(sorted(nodes, key=lambda n: n.name)))
        inventory = DeviceInventory(
            node_devices(cluster_objects.slices, fleet), cluster_objects.classes
        )
        nodes, remaining = with_devices(nodes, inventory, cluster_objects.devices)
    return nodes, [
        f"{counted(number, 'device')} that {driver} publishes in ResourceSlices: add the quota of their DeviceClass"
        for driver, number in sorted(remaining.items())
        if number > 0
    ]


def _require_nodes(cluster_objects: _Found, proposal: Proposal) -> None:
    """Raise CommandFailed if there is nothing to propose."""
    if not cluster_objects.nodes:
        raise CommandFailed(
            f"{cluster_objects.source}: no Node, so no capacity to propose", Exit.BAD_INPUT
        )
    if not proposal.entries:
        reasons = "; ".join(proposal.left_out)
        raise CommandFailed(
            f"{cluster_objects.source}: no node can be proposed: {reasons}", Exit.BAD_INPUT
        )


def _refuse_existing(bodies: Iterable[Json], existing: Iterable[Json]) -> None:
    """Raise CommandFailed with all differences if an object exists in another form."""
    known = {Target.of(body, ""): body for body in existing}
    lines: list[str] = []
    for body in bodies:
        target = Target.of(body, "")
        if target not in known:
            continue
        changes = differences(known[target], validate(body)[0])
        if changes:
            lines += [f"{target} exists and differs", *(f"    {change}" for change in changes)]
    if lines:
        for line in lines:
            typer.echo(line, err=True)
        message = "nothing is printed: change your file, or choose another name with --queue"
        raise CommandFailed(message, Exit.CONFLICT)


def _warnings(
    cluster_objects: _Found, proposal: Proposal, namespaces: Sequence[str], queue: str
) -> Iterable[str]:
    if not proposal.gpus:
        yield "no node has a GPU resource: is the device plugin installed?"
    others = sorted(
        body["metadata"]["name"]
        for body in cluster_objects.existing
        if body["kind"] == "ClusterQueue" and body["metadata"]["name"] != queue
    )
    if others:
        yield f"the quota is all capacity, and these ClusterQueues exist already: {', '.join(others)}"
    for name in namespaces:
        if cluster_objects.namespaces is not None and name not in cluster_objects.namespaces:
            yield f"namespace {name} does not exist"
