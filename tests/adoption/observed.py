"""The state of a cluster on the way, and the report of a way."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from queuectl.demo.scenario import Document
from queuectl.localcluster.client import Client
from tests.adoption import kueue, ways
from tests.adoption.walk import Walk
from tests.system.transcript import ROOT

REPORTS: Final = ROOT / "build" / "adoption"
_WORKLOADS: Final = f"/apis/{kueue.API}/namespaces/default/workloads"


def save(walk: Walk, name: str) -> None:
    """Print the table, and write it to a file of ``build/adoption``."""
    file = Path(REPORTS, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(walk.table() + "\n")
    print(f"\n{walk.table()}")


def problems(walk: Walk) -> str:
    """The objects of the cluster, and the last lines of the logs of both controllers."""
    listed = "kubectl get pods,jobs,workloads.kueue.x-k8s.io,apiservices,events -A"
    own = "kubectl -n queuectl-system logs --all-containers --tail 20 -l app.kubernetes.io/name=queuectl"
    other = "kubectl -n kueue-system logs --tail 20 deploy/kueue-controller-manager"
    return walk.shell.type(f"{listed}; {own}; {other}")[1]


def succeeded(client: Client, name: str) -> bool:
    """Whether both pods of a Job have succeeded."""
    status = client.get(f"/apis/batch/v1/namespaces/default/jobs/{name}")["status"]
    return bool(status.get("succeeded") == 2)


def running(client: Client, name: str) -> set[str]:
    """The uids of the running pods of a Job."""
    pods: list[Document] = client.get("/api/v1/namespaces/default/pods")["items"]
    return {
        pod["metadata"]["uid"]
        for pod in pods
        if pod["metadata"]["name"].startswith(f"{name}-") and pod["status"]["phase"] == "Running"
    }


def states(walk: Walk) -> dict[str, str]:
    """The state of each gang of queuectl by its name; empty while it does not answer."""
    command = walk.command(f"{ways.IN_POD} get workloads -o json")
    status, printed = walk.shell.type(f"{command} | jq -r '.items[] | \"\\(.name) \\(.state)\"'")
    return dict(line.split() for line in printed.splitlines() if line) if status == 0 else {}


def admitted(client: Client, name: str) -> bool:
    """Whether Kueue has admitted the Workload of a Job."""
    conditions = [
        condition
        for workload in client.get(_WORKLOADS)["items"]
        if workload["metadata"]["ownerReferences"][0]["name"] == name
        for condition in workload.get("status", {}).get("conditions", ())
    ]
    return any(one["type"] == "Admitted" and one["status"] == "True" for one in conditions)
