"""Filled clusters on the disk: a cluster is filled once for each system, and restored for each row.

A snapshot is a folder outside the repository, in `SCALE_DIR` (default: `queuectl/scale` of the user's cache folder), with the data folder
of etcd, the data of the system, and a manifest. A snapshot of another commit, version or fill is refused, because its objects can differ
from those that the measured system would have made.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from queuectl.localcluster import components
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.errors import LocalClusterError, UnreachableError
from queuectl.localcluster.versions import KUBERNETES
from tests.bench.scale.fill import FILLS, Fill
from tests.bench.scale.fleet import Fleet
from tests.bench.scale.processes import Usage
from tests.bench.scale.stage import LEASES_PATH, NODES_READY_SECONDS, ScaleStage, running_stage
from tests.bench.scale.systems import System

DIRECTORY: Final = "SCALE_DIR"
FILL_SECONDS: Final = 3600.0
_MANIFEST: Final = "manifest.json"
_SETTLED_SECONDS: Final = 10.0
"""After the last pod runs, the controllers write statuses."""


class StaleSnapshotError(Exception):
    """A snapshot of another state of the project. The message states the difference."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a snapshot. ``system``: the ``fill_name`` of the system. ``gangs``, ``pods``, ``gpus``: of its fill."""

    system: str
    nodes: int
    fill: str
    version: str
    kubernetes: str
    gangs: int
    pods: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Filled:
    """A new snapshot.

    Attributes:
        folder: its folder.
        start: seconds from an empty folder to ready nodes and system.
        fill: seconds from there to the last running pod.
        save: seconds from there to the snapshot.
        usage: what the programs used.
        remarks: of the system.
    """

    folder: Path
    start: float
    fill: float
    save: float
    usage: Usage
    remarks: Sequence[str]


def directory() -> Path:
    """The folder of all snapshots."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get(DIRECTORY) or f"{cache}/queuectl/scale").expanduser().absolute()


def folder_of(manifest: Manifest) -> Path:
    """The folder of one snapshot."""
    return directory() / f"{manifest.system}-{manifest.nodes}-{manifest.fill}"


def manifest_of(system: System, fleet: Fleet, fill: str) -> Manifest:
    """The manifest that a snapshot must have now."""
    content = FILLS[fill](fleet)
    return Manifest(
        system.fill_name,
        fleet.nodes,
        fill,
        system.version(),
        KUBERNETES,
        len(content.gangs),
        content.pods,
        content.gpus,
    )


def saved(system: System, fleet: Fleet, fill: str, *, stale: bool = False) -> Path | None:
    """The folder of the snapshot; None if it does not exist. ``stale``: accept another commit of the system.

    Raises:
        StaleSnapshotError: it is of another state.
    """
    current = manifest_of(system, fleet, fill)
    folder = folder_of(current)
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
    except FileNotFoundError:
        return None
    expected = asdict(current)
    differs = {
        key: (manifest.get(key), value)
        for key, value in expected.items()
        if manifest.get(key) != value and not (stale and key == "version")
    }
    if differs:
        words = ", ".join(f"{key} {was} instead of {now}" for key, (was, now) in differs.items())
        raise StaleSnapshotError(f"{folder} is stale: {words}. Replace it with --refill")
    return folder


def make(new_system: Callable[[], System], fleet: Fleet, fill: str, *, fsync: bool) -> Filled:
    """Fill a cluster and keep it. An older snapshot is replaced at the end.

    Raises:
        RowCutError: the pods of the fill do not run after an hour.
    """
    system = new_system()
    manifest = manifest_of(system, fleet, fill)
    folder = folder_of(manifest)
    draft = folder.with_name(folder.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    began = time.monotonic()
    try:
        with running_stage(system, fleet, fsync=fsync, saved=None) as stage:
            stage.settle()
            started = time.monotonic()
            _create(stage, FILLS[fill](fleet))
            filled = time.monotonic()
            time.sleep(_SETTLED_SECONDS)
            stage.settle()
            usage, remarks = stage.usage(), system.remarks()
            system.halt()
            system.save(draft)
            _delete_leases(stage)
            data = stage.cluster.stop_etcd()
            shutil.copytree(data, draft / "etcd")
        (draft / _MANIFEST).write_text(json.dumps(asdict(manifest), indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    saved_at = time.monotonic()
    return Filled(folder, started - began, filled - started, saved_at - filled, usage, remarks)


def _create(stage: ScaleStage, content: Fill) -> None:
    stage.begin(FILL_SECONDS)
    print(f"    fill: {content.summary()}", flush=True)
    for number, phase in enumerate(content.phases):
        began = time.monotonic()
        stage.submit(phase)
        stage.wait_bound(phase, running=number == len(content.phases) - 1)
        print(
            f"    {len(phase):,} gangs of {phase[0].gpus} GPUs a pod bound after"
            f" {time.monotonic() - began:.0f} s",
            flush=True,
        )


def _delete_leases(stage: ScaleStage) -> None:
    """Delete the node leases: the KWOK of a restored cluster would wait until those of this one have ended."""
    stage.cluster.supervisor.stop(components.KWOK)
    client = stage.cluster.client

    def deleted() -> bool:
        with suppress(UnreachableError):  # the API server continues after a timeout
            client.delete(LEASES_PATH)
            return not client.get(LEASES_PATH, limit="1")["items"]
        return False

    wait_until(deleted, "the deletion of the node leases", NODES_READY_SECONDS)


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_space(fleet: Fleet) -> None:
    """Refuse to begin without space on the disk.

    Raises:
        LocalClusterError: less than 1 GiB, and 1 GiB for each 5,000 nodes, is free.
    """
    place = directory()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    needed = (1 + fleet.nodes / 5000) * 2**30
    if (free := shutil.disk_usage(place).free) < needed:
        raise LocalClusterError(
            f"{place} has {free / 2**30:.1f} GiB of free space, and {needed / 2**30:.1f} GiB are needed; set {DIRECTORY}"
        )
