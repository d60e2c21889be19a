"""The aggregated API on a real kube-apiserver: the output of kubectl, forged requests, and the effects while it does not answer."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from queuectl.db.embedded import EmbeddedServer
from queuectl.demo.controller import KUEUE_KEYS, install
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import LocalCluster, NodeSpec, build, versions
from queuectl.localcluster.certificates import Authority, KeyPair
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.components import CONTROLLER_MANAGER
from queuectl.localcluster.layout import free_ports
from tests.system.actions import outside_database
from tests.system.installation import Installation, Workspace, installed

pytestmark = [pytest.mark.operations, pytest.mark.timeout(900)]

API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1.visibility.queuectl.dev"
SERVICE = "/api/v1/namespaces/queuectl-system/services/queuectl-visibility"
JOBS = "/apis/visibility.queuectl.dev/v1/namespaces/{}/queuedjobs"
[PORT] = free_ports(1)


@contextmanager
def with_visibility(cluster: LocalCluster) -> Iterator[None]:
    """The manifests with the opt-in, and a Service that leads to a port of this machine."""
    install(cluster, KUEUE_KEYS, "visibility")
    leads_to(cluster, PORT)
    yield


def leads_to(cluster: LocalCluster, port: int) -> None:
    """Let the APIService lead to a port of this machine."""
    external = {"type": "ExternalName", "externalName": "localhost", "clusterIP": None}
    cluster.client.patch(SERVICE, {"spec": {**external, "clusterIPs": None}})
    cluster.client.patch(API_SERVICE, {"spec": {"service": {"port": port}}})


def available(cluster: LocalCluster) -> bool:
    conditions = cluster.client.get(API_SERVICE).get("status", {}).get("conditions", [])
    return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)


@pytest.fixture(scope="module")
def database() -> Iterator[EmbeddedServer]:
    with outside_database() as server:
        yield server


@pytest.fixture(scope="module")
def home(database: EmbeddedServer) -> Iterator[Installation]:
    settings = {
        "QUEUECTL_VISIBILITY_LISTEN": f"127.0.0.1:{PORT}",
        "QUEUECTL_VISIBILITY_HOSTS": "queuectl-visibility.queuectl-system.svc",
    }
    settings["QUEUECTL_DATABASE_URL"] = database.url()
    nodes = NodeSpec(racks_per_block=1, hosts_per_rack=2)
    with installed(nodes, settings, with_visibility, operators=()) as installation:
        wait_until(lambda: available(installation.cluster), "the APIService", 90.0)
        yield installation


@pytest.fixture(scope="module")
def team(home: Installation) -> Iterator[Workspace]:
    with home.workspace(8, "team-a") as workspace:
        workspace.job("first", PodSetManifest(1, gpus=8))
        workspace.until_state("first", "Running")
        workspace.job("second", PodSetManifest(1, gpus=8))
        workspace.until_state("second", "Pending")
        workspace.until(
            lambda: workspace.workload("second")["reason"]["code"] != "Queued", "a reason"
        )
        yield workspace


def kubectl(home: Installation, *arguments: str, user: Path | None = None) -> str:
    done = run(home, *arguments, user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(
    home: Installation, *arguments: str, user: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [build.program(versions.kubectl()), *arguments],
        env=os.environ | {"KUBECONFIG": str(user or home.cluster.kubeconfig)},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


# ---- kubectl


def test_kubectl_prints_state_queue_position_and_reason(home: Installation, team: Workspace):
    header, first, second = kubectl(home, "get", "queuedjobs", "-n", "team-a").splitlines()
    assert header.split() == ["NAME", "STATE", "QUEUE", "POSITION", "EXPECTED", "START", "REASON"]
    assert first.split()[:3] == ["job-first", "Running", "main"]
    assert second.split()[:4] == ["job-second", "Pending", "main", "1"]
    assert kubectl(home, "get", "qj", "-A", "-o", "name").splitlines() == [
        "queuedjob.visibility.queuectl.dev/job-first",
        "queuedjob.visibility.queuectl.dev/job-second",
    ]
    wide = kubectl(home, "get", "qj", "-n", "team-a", "-o", "wide")
    assert "MESSAGE" in wide


def test_one_object_has_its_explanation_and_a_list_has_none(home: Installation, team: Workspace):
    one = json.loads(kubectl(home, "get", "qj", "job-second", "-n", "team-a", "-o", "json"))
    assert one["explanation"]["sentence"].startswith("team-a/second is pending")
    assert one["spec"]["queue"] == "main"
    listed = json.loads(kubectl(home, "get", "qj", "-n", "team-a", "-o", "json"))
    assert [item["explanation"] for item in listed["items"]] == [None, None]
    described = kubectl(home, "describe", "qj", "job-second", "-n", "team-a")
    assert "Explanation:" in described
    assert "Position In Cluster Queue" in described


def test_selectors_choose_and_malformed_ones_are_a_clear_400(home: Installation, team: Workspace):
    names = ("get", "qj", "-n", "team-a", "-o", "name")
    assert "job-first" in kubectl(home, *names, "--field-selector", "status.state=Running")
    assert "job-second" not in kubectl(home, *names, "--field-selector", "status.state=Running")
    pending = "visibility.queuectl.dev/state in (Pending, Held)"
    assert kubectl(home, *names, "-l", pending).count("job-second") == 1
    refused = run(home, *names, "--field-selector", "status.color=red")
    assert "status.color is not supported" in refused.stderr
    assert kubectl(home, *names, "--chunk-size", "1").count("job-") == 2


def test_discovery_and_schemas(home: Installation, team: Workspace):
    resources = kubectl(home, "api-resources", "--api-group", "visibility.queuectl.dev")
    assert resources.splitlines()[1].split() == [
        *("queuedjobs", "qj", "visibility.queuectl.dev/v1", "true", "QueuedJob")
    ]
    assert "positionInClusterQueue" in kubectl(home, "explain", "queuedjobs.status")
    assert "LocalQueue" in kubectl(home, "explain", "qj.spec.queue")


def test_other_verbs_are_refused(home: Installation, team: Workspace):
    refused = run(home, "delete", "qj", "job-first", "-n", "team-a")
    assert "MethodNotAllowed" in refused.stderr
    missing = run(home, "get", "qj", "first", "-n", "team-a")
    assert "the name begins with the kind of the job: job-first" in missing.stderr


def test_the_rights_of_the_user_decide(home: Installation, team: Workspace):
    stranger = home.cluster.kubeconfig_for_user("stranger")
    refused = run(home, "get", "qj", "-n", "team-a", user=stranger)
    assert "Forbidden" in refused.stderr
    member = home.cluster.kubeconfig_for_user("member")
    kubectl(
        home,
        *("create", "rolebinding", "member", "-n", "team-a"),
        *("--clusterrole", "view", "--user", "member"),
    )
    wait_until(
        lambda: "job-first" in run(home, "get", "qj", "-n", "team-a", user=member).stdout,
        "the right",
        60.0,
    )
    assert "Forbidden" in run(home, "get", "qj", "-A", user=member).stderr


def test_kubectl_follows_changes(home: Installation, team: Workspace):
    with subprocess.Popen(
        [build.program(versions.kubectl()), *("get", "qj", "-n", "team-a", "-w", "--no-headers")],
        env=os.environ | {"KUBECONFIG": str(home.cluster.kubeconfig)},
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        seen = [watching.stdout.readline().split()[:2] for _ in range(2)]
        assert seen == [["job-first", "Running"], ["job-second", "Pending"]]
        team.job("third", PodSetManifest(1, gpus=8))
        lines: list[list[str]] = []
        while "job-third" not in [line[0] for line in lines]:
            lines.append(watching.stdout.readline().split()[:2])
        assert lines[-1][1] == "Pending"
        watching.kill()


def test_the_last_known_workloads_are_printed_while_the_database_is_down(
    home: Installation, team: Workspace, database: EmbeddedServer
):
    names = ("get", "qj", "-n", "team-a", "-o", "name")
    before = kubectl(home, *names)
    asyncio.run(database.stop(immediate=True))
    try:
        wait_until(
            lambda: "database does not answer" in run(home, *names).stderr, "the warning", 60.0
        )
        assert kubectl(home, *names) == before
        described = kubectl(home, "describe", "qj", "job-second", "-n", "team-a")
        assert "Explanation:" in described
        assert available(home.cluster)
    finally:
        asyncio.run(database.start())
    wait_until(lambda: not run(home, *names).stderr, "the end of the outage", 60.0)


# ---- forged requests


def direct(identity: KeyPair | None, folder: Path) -> httpx2.Client:
    """A client that reaches the port without kube-apiserver."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if identity is not None:
        identity.save(folder / "client.crt", folder / "client.key")
        context.load_cert_chain(folder / "client.crt", folder / "client.key")
    return httpx2.Client(base_url=f"https://127.0.0.1:{PORT}", verify=context, trust_env=False)


ADMIN = {"X-Remote-User": "queuectl-localcluster-admin", "X-Remote-Group": "system:masters"}


def test_headers_without_the_certificate_of_the_api_server_name_no_user(
    home: Installation, team: Workspace, tmp_path: Path
):
    pki = home.cluster.kubeconfig.parents[1] / "pki"
    proxy = Authority.load(pki / "front-proxy-ca.crt", pki / "front-proxy-ca.key")
    users = Authority.load(pki / "ca.crt", pki / "ca.key")
    path = JOBS.format("team-a")
    with direct(None, tmp_path) as nobody:
        for _ in range(3):  # also on a kept connection
            answer = nobody.get(path, headers=ADMIN)
            assert (answer.status_code, answer.json()["kind"]) == (401, "Status")
    with direct(proxy.client("queuectl-localcluster-admin"), tmp_path) as wrong_name:
        assert wrong_name.get(path, headers=ADMIN).status_code == 401
    for other in (users, Authority.create("queuectl-localcluster-front-proxy")):
        with (
            direct(other.client("front-proxy-client"), tmp_path) as stranger,
            pytest.raises(httpx2.HTTPError),
        ):
            stranger.get(path, headers=ADMIN)
    with direct(proxy.client("front-proxy-client"), tmp_path) as server:
        assert server.get(path, headers=ADMIN).status_code == 200
        assert server.get(path).status_code == 401
        twice = [("X-Remote-User", "a"), ("X-Remote-User", "queuectl-localcluster-admin")]
        assert server.get(path, headers=twice).status_code == 401
        groups = [("X-Remote-User", "a"), *(("X-Remote-Group", f"g{n}") for n in range(10_000))]
        assert server.get(path, headers=groups).status_code in (400, 401)
        powerless = {"X-Remote-User": "a", "X-Remote-Group": "b"}
        assert server.get(path, headers=powerless).status_code == 403


# ---- the cost of an APIService that does not answer


def seconds_of(deed: Any) -> float:
    began = time.monotonic()
    deed()
    return time.monotonic() - began


def namespace_deletion(home: Installation, name: str, limit: float) -> str:
    """How long the deletion of a namespace with a ConfigMap takes; it continues after the limit."""
    client = home.cluster.client
    client.create("/api/v1/namespaces", {"metadata": {"name": name}})
    client.create(f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": "content"}})
    began = time.monotonic()
    client.delete(f"/api/v1/namespaces/{name}")
    while time.monotonic() - began < limit:
        if not client.exists(f"/api/v1/namespaces/{name}"):
            return f"{time.monotonic() - began:.1f} s"
        time.sleep(0.1)
    return f"not within {limit:.0f} s"


def garbage_collection(home: Installation, name: str, limit: float) -> str:
    """How long it takes until a dependent of a deleted owner is deleted."""
    client, path = home.cluster.client, "/api/v1/namespaces/default/configmaps"
    owner = client.create(path, {"metadata": {"name": f"owner-{name}"}})["metadata"]
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner["name"],
        "uid": owner["uid"],
    }
    own = {"name": f"own-{name}", "ownerReferences": [reference]}
    client.create(path, {"metadata": own})
    began = time.monotonic()
    client.delete(f"{path}/owner-{name}", propagationPolicy="Background")
    while time.monotonic() - began < limit:
        if not client.exists(f"{path}/own-{name}"):
            return f"{time.monotonic() - began:.1f} s"
        time.sleep(0.1)
    return f"not within {limit:.0f} s"


def measured(home: Installation, called: str) -> dict[str, str]:
    """The figures of docs/how-to/kubectl.md."""
    resources: list[subprocess.CompletedProcess[str]] = []
    fresh = ("api-resources", "--cached=false")
    took = seconds_of(lambda: resources.append(run(home, *fresh)))
    code, said = resources[0].returncode, resources[0].stderr.strip()[:200]
    code_text = f"exit code {code}, {'with' if 'queuedjobs' in resources[0].stdout else 'without'} queuedjobs"
    return {
        "namespace deletion": namespace_deletion(home, f"deleted-{called}", 45.0),
        "garbage collection": garbage_collection(home, called, 45.0),
        "api-resources": f"{took:.1f} s, {code_text} {said}".strip(),
        "kubectl get pods": f"{seconds_of(lambda: kubectl(home, 'get', 'pods')):.1f} s",
    }


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=512)) as listener:
        yield listener.getsockname()[1]


def test_what_breaks_while_it_does_not_answer(home: Installation, team: Workspace):
    figures = {"up": measured(home, "up")}
    [unused] = free_ports(1)
    leads_to(home.cluster, unused)
    wait_until(lambda: not available(home.cluster), "the outage", 120.0)
    time.sleep(75.0)
    figures["down"] = measured(home, "down")
    with black_hole() as port:
        leads_to(home.cluster, port)
        time.sleep(75.0)  # the API server reads the resources of all groups again each minute
        figures["black hole"] = measured(home, "hole")
        home.cluster.kill(CONTROLLER_MANAGER)
        home.cluster.start_component(CONTROLLER_MANAGER)
        collected = garbage_collection(home, "restarted", 120.0)
        figures["black hole"]["garbage collection by a new controller manager"] = collected
    home.cluster.client.delete(API_SERVICE)
    figures["deleted"] = {}
    began = time.monotonic()
    for name in ("deleted-down", "deleted-hole"):
        wait_until(
            lambda name=name: not home.cluster.client.exists(f"/api/v1/namespaces/{name}"),  # type: ignore[misc]
            f"the end of {name}",
            300.0,
        )
    figures["deleted"]["namespaces that waited"] = f"{time.monotonic() - began:.1f} s"
    for state, found in figures.items():
        print(state, found)
    assert "not within" not in figures["up"]["namespace deletion"]
    assert "not within" in figures["down"]["namespace deletion"]
    assert "not within" not in figures["down"]["garbage collection"]
