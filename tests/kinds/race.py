"""Gangs of seven kinds on one cluster with the real operators: `make race`, or `python -m tests.kinds.race 300`.

It fails unless each gang ends, was whole at each start, and the audit of the whole run is clean. It prints queuectl's writes to the API
server for each gang of a kind, from the audit log of the API server.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.layout import AUDIT_LOGS
from queuectl.objects import keys
from tests.kinds.entries import ENTRIES, OPERATORS
from tests.system.installation import RACK, Installation, Workspace, installed

NODES: Final = NodeSpec(blocks=2, racks_per_block=8, hosts_per_rack=8)
"""128 nodes with 8 GPUs each."""
GROUP: Final = "PodGroup"
KINDS: Final = ("Job", "PyTorchJob", "JobSet", "TFJob", "JAXJob", "MPIJob", GROUP)
SIZES: Final = (4, 5, 6, 8)
PATIENCE: Final = 1800.0  # seconds
_NAME: Final = re.compile(r"(?P<kind>[a-z]+)-(?P<number>\d{3})")
_MAKERS: Final = {entry.kind: entry for entry in ENTRIES}


def _templates(document: Any) -> Iterator[Document]:
    """The pod, or the pod templates, of an object."""
    if isinstance(document, Mapping):
        if "containers" in document.get("spec", {}):
            yield dict(document)
        for value in document.values():
            yield from _templates(value)
    elif isinstance(document, list):
        for value in document:
            yield from _templates(value)


def gang(
    kind: str, name: str, namespace: str, pods: PodSetManifest, priority: str
) -> list[Document]:
    """The objects of a gang whose pods run for three seconds."""
    documents = list(_MAKERS[kind].documents(name, namespace, pods, priority))
    if kind == "MPIJob":
        # With Running, its operator keeps workers that ended before an eviction, and the gang waits for their deletion.
        documents[0]["spec"]["runPolicy"]["cleanPodPolicy"] = "All"
    for document in documents:
        for template in _templates(document):
            template["metadata"].setdefault("annotations", {})[m.RUN_SECONDS] = "3"
    if kind == GROUP:
        # No program creates its pods again after an eviction.
        kept = {keys.PREFIX + keys.PREEMPTIBLE: "false"}
        for document in documents:
            document["metadata"]["annotations"] |= kept
    return documents


def race(number: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as logs:
        os.environ[AUDIT_LOGS] = logs
        with installed(NODES, operators=OPERATORS) as installation:
            sizes = _run(installation, number, seed)
        [log] = Path(logs).glob("*.log")
        _print_writes(_writes(log), sizes)


def _run(installation: Installation, number: int, seed: int) -> dict[str, int]:
    """Returns the pods of each gang."""
    chance, sizes, documents = random.Random(seed), {}, []
    with installation.workspace(NODES.count * 8) as workspace:
        for place in range(number):
            kind = KINDS[place % len(KINDS)]
            name = f"{kind.lower()}-{place:03}"
            sizes[name] = chance.choice(SIZES)
            required = RACK if chance.random() < 0.3 else None
            # A later gang of high priority preempts those that run.
            priority = "high" if place > number // 2 and chance.random() < 0.1 else "low"
            shape = PodSetManifest(sizes[name], gpus=8, required=required)
            documents += gang(kind, name, workspace.namespace, shape, priority)
        began = time.monotonic()
        workspace.client.each(workspace.submit, documents)
        _wait(workspace, number)
        seconds = time.monotonic() - began
        found = workspace.workloads()
        wrong = {n: w["reason"] for n, w in found.items() if w["reason"]["code"] != "Succeeded"}
        assert not wrong, wrong
        workspace.recorder.settle(seconds=60)
        evictions = sum(one["evictions"] for one in found.values())
        print(
            f"{number} gangs, {sum(sizes.values())} pods, {evictions} evictions: "
            f"all ended after {seconds:.0f} s; the audit follows"
        )
    print("the audit is clean")
    return sizes


def _wait(workspace: Workspace, number: int) -> None:
    deadline, shown = time.monotonic() + PATIENCE, 0.0
    while True:
        states = Counter(str(one["state"]) for one in workspace.workloads().values())
        if states["Finished"] == number:
            return
        if time.monotonic() > deadline:
            raise TimeoutError("\n".join(workspace.states()))
        if time.monotonic() > shown + 20:
            shown = time.monotonic()
            print(dict(states), flush=True)
        time.sleep(1)


def _writes(log: Path) -> Counter[tuple[str, str, str]]:
    """By kind, resource and name of the gang. Events are not counted: their requests name no gang."""
    found: Counter[tuple[str, str, str]] = Counter()
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if SYSTEM_NAMESPACE not in event["user"]["username"]:
            continue
        reference = event.get("objectRef", {})
        named = _NAME.match(reference.get("name", ""))
        if named and event["verb"] in ("patch", "update", "delete"):
            resource = reference["resource"]
            part = "pods" if resource == "pods" else "objects"
            found[named["kind"], part, named[0]] += 1
    return found


def _print_writes(writes: Counter[tuple[str, str, str]], sizes: Mapping[str, int]) -> None:
    print("\n| kind | gangs | pods in a gang | writes to the object | to pods |")
    print("| --- | --- | --- | --- | --- |")
    for kind in KINDS:
        names = [name for name in sizes if name.startswith(f"{kind.lower()}-")]
        pods = sum(sizes[name] for name in names) / len(names)
        cells = [
            sum(writes[kind.lower(), part, name] for name in names) / len(names)
            for part in ("objects", "pods")
        ]
        print(
            f"| `{kind}` | {len(names)} | {pods:.1f} | "
            + " | ".join(f"{c:.1f}" for c in cells)
            + " |"
        )


if __name__ == "__main__":
    race(int(sys.argv[1]) if sys.argv[1:] else 300, seed=1)
