"""``queuectl describe``: one object in full."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Annotated, Any

import typer
import yaml

from queuectl.cli import complete
from queuectl.cli.client import (
    DEFAULT_SERVER,
    Json,
    Namespace,
    Server,
    config_kind,
    config_path,
    connect,
    read_config,
    workload_path,
    workloads,
)
from queuectl.cli.columns import override_amount, placed_nodes
from queuectl.cli.explain import Kind, explain_lines
from queuectl.cli.render import age
from queuectl.client.client import Client
from queuectl.client.requests import UNFINISHED
from queuectl.client.requests import history as history_of
from queuectl.domain.words import counted, counted_gpus, format_time, one_line, some
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS, PREFIX, ConfigKind
from queuectl.objects.times import parse_time

_HISTORY = 500  # steps that are printed, the newest ones
_NODES = 8  # of an attempt
_HEAD = ("apiVersion", "kind", "metadata")  # shown in another form
_WIDTH = 1000  # characters of a line of YAML, so that text is not folded


def describe_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="workload, clusterqueue, localqueue, ...",
            autocompletion=complete.described_kinds,
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the object.", autocompletion=complete.names),
    ],
    namespace: Namespace = None,
    job_kind: Annotated[
        str | None,
        typer.Option(
            "--kind", metavar="KIND", help="Kind of the job, if several jobs have this name."
        ),
    ] = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show one object in full. For a workload, this includes its explanation, conditions and history."""
    config = config_kind(kind)
    with connect(server) as client:
        if config is None:
            lines = _workload(client, workload_path(name, namespace), job_kind)
        else:
            lines = _config(client, config, name, namespace)
    typer.echo("\n".join(lines))


def _config(client: Client, kind: ConfigKind, name: str, namespace: str | None) -> list[str]:
    body = read_config(client, kind, config_path(kind, name, namespace))
    meta = body["metadata"]
    shown = {
        "name": meta["name"],
        "namespace": meta.get("namespace"),
        "kind": body["kind"],
        "labels": meta.get("labels"),
        "annotations": meta.get("annotations"),
        "version": int(meta["resourceVersion"]),
        **{key: value for key, value in body.items() if key not in _HEAD},
    }
    if kind.kind == "ClusterQueue":
        (use,) = client.get(f"{PREFIX}/queueuse", cluster_queue=name)["items"]
        shown["use"] = [_use(row) for row in use["resources"]] or None
        shown["overrides"] = _overrides(client, name) or None
        shown["workloads"] = _counts(client, cluster_queue=name)
    elif kind.kind == "LocalQueue":
        shown["workloads"] = _counts(client, queue=name, namespace=meta["namespace"])
    known = {key: value for key, value in shown.items() if value is not None}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=_WIDTH).splitlines()


def _use(row: Json) -> str:
    """``72 of 64 nvidia.com/gpu of h100 (8 borrowed)``."""
    if row["used"] is None:
        return f"unknown of {row['quota']} {row['resource']} of {row['flavor']}"
    borrowed = f" ({row['borrowed']} borrowed)" if row["borrowed"] != "0" else ""
    return f"{row['used']} of {row['quota']} {row['resource']} of {row['flavor']}{borrowed}"


def _overrides(client: Client, queue: str) -> list[str]:
    """Current and future QuotaOverrides of a ClusterQueue: ``+16 nvidia.com/gpu of h100 until ... (deadline)``."""
    path = next(kind for kind in CONFIG_KINDS if kind.kind == "QuotaOverride").collection()
    found, now = [], time.time()
    for item in client.get(path)["items"]:
        spec = item["spec"]
        begins, ends = parse_time(spec["from"]), parse_time(spec["until"])
        if spec["clusterQueue"] != queue or ends <= now:
            continue
        when = "" if begins <= now else f"from {format_time(begins)} "
        what = f"{override_amount(item)} {spec['resource']} of {spec['flavor']}"
        found.append(f"{what} {when}until {format_time(ends)} ({item['metadata']['name']})")
    return found


def _counts(client: Client, **filters: str) -> str:
    """Counts of a queue's unfinished workloads by state."""
    states = Counter(w["state"] for w in workloads(client, state=UNFINISHED, **filters))
    return ", ".join(f"{states[state]} {state}" for state in UNFINISHED if states[state]) or "none"


def _workload(client: Client, path: str, kind: Kind) -> list[str]:
    body = client.get(path, kind=kind)
    found = {"kind": body["kind"]}  # the same job in all three answers
    explained = client.get(f"{path}/explain", **found)
    steps = client.objects(history_of(path, body["kind"]))
    history: deque[Json] = deque(map(dict, steps), maxlen=_HISTORY)
    fields = {
        "Name": f"{body['namespace']}/{body['name']}",
        "Kind": body["kind"],
        "UID": body["uid"],
        "Queue": f"{body['queue']} of {body['clusterQueue'] or 'no ClusterQueue'}",
        "Priority": _priority(body),
        "Size": _size(body, explained["placement"]),
        "Queued": _ago(body["queuedAt"]),
        "Started": _ago(body["startedAt"]),
        "Ready": _ago(body["readyAt"]),
        "Finished": _ago(body["finishedAt"]),
        "Attempt": f"{body['attempt']}; evictions: {body['evictions']}",
        "Position": _position(body),
        "Gates": ", ".join(body["gates"]),
        "After": ", ".join(body["after"]),
    }
    lines = [f"{title + ':':<10}{value}" for title, value in fields.items() if value]
    lines += ["", *explain_lines(explained), "", "Conditions:"]
    lines += [
        f"  {each['type']:<14} {each['status']:<6} {each['reason']}" for each in body["conditions"]
    ]
    is_cut = len(history) == _HISTORY
    lines += ["", f"History, the newest {_HISTORY} steps:" if is_cut else "History:"]
    lines += [f"  {_line(item)}" for item in history]
    return lines


def _size(body: Json, placement: Json | None) -> str:
    """The requested pods and GPUs, and the number of pods after a partial admission."""
    requested = f"{counted(body['pods'], 'pod')}, {counted_gpus(body['gpus'])}"
    if placement is None or placement["planned"]:
        return requested
    started = sum(each["count"] for each in placement["podSets"])
    return requested if started == body["pods"] else f"{requested}; {started} pods started"


def _position(body: dict[str, Any]) -> str:
    among, local = body["positionInClusterQueue"], body["positionInLocalQueue"]
    if among is None:
        return ""
    return f"{among} in ClusterQueue {body['clusterQueue']}, {local} in LocalQueue {body['queue']}"


def _ago(moment: str | None) -> str:
    return f"{moment} ({age(moment)} ago)" if moment else ""


def _line(step: dict[str, Any]) -> str:
    before = f"{step['fromState']} > " if step["fromState"] else ""
    message = one_line(step["reason"]["message"])
    nodes = placed_nodes(step)
    where = f" on {counted(len(nodes), 'node')}: {some(nodes, _NODES)}" if nodes else ""
    return f"{step['at']}  {step['event']:<20} {before}{step['toState']}  {message}{where}".rstrip()


def _priority(body: dict[str, Any]) -> str:
    """The priority, and whether a user set it, until when."""
    if body["prioritySet"] is None:
        return str(body["priority"])
    ends = f" until {body['priorityUntil']}" if body["priorityUntil"] else ""
    return f"{body['priority']}, set by a user{ends}"
