"""The classes of faults. Each fault ends before its function returns."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

from queuectl.demo.scenario import FAIL_SECONDS, RUN_SECONDS
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.localcluster.errors import ApiServerError
from queuectl.localcluster.nodes import KUBELET
from tests.chaos.load import NAMESPACE, Load, solo
from tests.chaos.stage import PROGRAM, Stage, family, send
from tests.support.relay import LATE, LOST, Fault, Relay, Request, slow

LEASE = 4.0  # seconds; QUICK
CONTROLLER = "system:serviceaccount:queuectl-system:queuectl"
POLICY_SECONDS = 2.0  # until a policy that was deleted refuses nothing
STRUCK_SECONDS = 15.0
API_SERVER = "kube-apiserver"
WRITES = ("PATCH", "PUT", "POST", "DELETE")

Act = Callable[[Stage, Load, Random], None]


def leader_killed(stage: Stage, load: Load, draw: Random) -> None:
    leader = stage.leader()
    leader.kill()
    stage.last(draw.choice((0.0, 0.5, LEASE + 2.0)))
    leader.restart()


def both_killed(stage: Stage, load: Load, draw: Random) -> None:
    for controller in stage.controllers:
        controller.kill()
    for controller in stage.controllers:
        controller.restart()


def leader_frozen(stage: Stage, load: Load, draw: Random) -> None:
    supervisor = stage.leader()._supervisor
    supervisor.pause(PROGRAM)
    try:
        stage.last(draw.choice((1.0, LEASE + 3.0, LEASE * 3)))
    finally:
        supervisor.signal(PROGRAM, signal.SIGCONT)


def clock_jumped(stage: Stage, load: Load, draw: Random) -> None:
    """Set the system clock of one controller an hour ahead or back for a while."""
    clock = draw.choice(stage.clocks)
    clock.write_text(draw.choice(("3600", "-3600")))
    try:
        stage.last(draw.choice((2.0, LEASE + 2.0)))
    finally:
        clock.write_text("0")


def database_killed(stage: Stage, load: Load, draw: Random) -> None:
    asyncio.run(stage.server.stop(immediate=True))
    stage.last(draw.choice((0.0, 2.0, 6.0)))
    asyncio.run(stage.server.start())


def database_frozen(stage: Stage, load: Load, draw: Random) -> None:
    assert stage.server.pid is not None
    pids = family(stage.server.pid)
    send(pids, signal.SIGSTOP)
    try:
        stage.last(draw.choice((2.0, 6.0, 25.0)))  # the last exceeds each answer timeout
    finally:
        send(pids, signal.SIGCONT)


def commits_lost(stage: Stage, load: Load, draw: Random) -> None:
    with judging(stage.wires.database, draw, LOST, 0.5, "COMMIT"):
        until_struck(stage, stage.wires.database, 4.0)


def commits_late(stage: Stage, load: Load, draw: Random) -> None:
    late = Fault(LATE.name, hold=draw.choice((0.2, 1.0, 3.0)))
    with judging(stage.wires.database, draw, late, 0.3, "COMMIT"):
        until_struck(stage, stage.wires.database, 5.0)


def statements_lost(stage: Stage, load: Load, draw: Random) -> None:
    with judging(stage.wires.database, draw, LOST, 0.1, ""):
        until_struck(stage, stage.wires.database, 4.0)


def database_slow(stage: Stage, load: Load, draw: Random) -> None:
    with judging(stage.wires.database, draw, slow(draw.choice((0.05, 0.3))), 1.0, ""):
        until_struck(stage, stage.wires.database, 5.0)


def api_server_frozen(stage: Stage, load: Load, draw: Random) -> None:
    stage.reachable = False
    stage.cluster.pause(API_SERVER)
    try:
        stage.last(draw.choice((2.0, LEASE + 2.0, 18.0)))  # longer than each answer timeout
    finally:
        stage.cluster.resume(API_SERVER)
        stage.reachable = True


def api_server_killed(stage: Stage, load: Load, draw: Random) -> None:
    stage.reachable = False
    stage.cluster.kill_apiserver()
    stage.cluster.start_apiserver()
    stage.reachable = True


def api_answers_lost(stage: Stage, load: Load, draw: Random) -> None:
    with judging(stage.wires.api, draw, LOST, 0.5, *WRITES):
        until_struck(stage, stage.wires.api, 4.0)


def api_writes_late(stage: Stage, load: Load, draw: Random) -> None:
    late = Fault(LATE.name, hold=draw.choice((0.2, 1.0, 3.0)))
    with judging(stage.wires.api, draw, late, 0.5, *WRITES):
        until_struck(stage, stage.wires.api, 5.0)


def watches_cut(stage: Stage, load: Load, draw: Random) -> None:
    for _ in range(3):
        stage.wires.cut(stage.wires.api, lambda does: "watch=" in does)
        stage.last(0.5)


def writes_refused(stage: Stage, load: Load, draw: Random) -> None:
    """Another policy refuses the controller's writes to jobs, or to pods."""
    group, resource = draw.choice(
        (("batch", "jobs"), ("kubeflow.org", "pytorchjobs"), ("", "pods"))
    )
    with refusing(stage, group, resource):
        stage.last(draw.choice((3.0, 8.0)))


def node_lost(stage: Stage, load: Load, draw: Random) -> None:
    name = draw.choice(sorted(stage.cluster.nodes.names()))
    stage.cluster.nodes.lose(name)
    try:
        stage.last(draw.choice((1.0, 8.0)))
    finally:
        stage.cluster.nodes.restore(name)


def node_cordoned(stage: Stage, load: Load, draw: Random) -> None:
    name = draw.choice(sorted(stage.cluster.nodes.names()))
    stage.cluster.nodes.cordon(name)
    try:
        for pod in pods(stage)[:2]:
            if pod.node == name:
                delete_pod(stage, pod)
        stage.last(draw.choice((1.0, 6.0)))
    finally:
        stage.cluster.nodes.uncordon(name)


def node_deleted(stage: Stage, load: Load, draw: Random) -> None:
    name = draw.choice(sorted(stage.cluster.nodes.names()))
    node = stage.client.get(f"/api/v1/nodes/{name}")
    stage.cluster.nodes.delete(name)
    try:
        stage.last(draw.choice((1.0, 6.0)))
    finally:
        for key in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            node["metadata"].pop(key, None)
        node["metadata"]["labels"][KUBELET] = "running"
        has = {key: node["status"][key] for key in ("capacity", "allocatable")}
        kind = {"apiVersion": "v1", "kind": "Node"}
        document = {**kind, "metadata": node["metadata"], "spec": {}, "status": has}
        stage.client.create("/api/v1/nodes", document)


def pods_failed(stage: Stage, load: Load, draw: Random) -> None:
    running = [pod for pod in pods(stage) if pod.phase is PodPhase.RUNNING]
    for pod in draw.sample(running, min(3, len(running))):
        change = {"metadata": {"annotations": {FAIL_SECONDS: "0", RUN_SECONDS: "1000"}}}
        with gone_is_fine():
            stage.client.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}", change)


def pods_deleted(stage: Stage, load: Load, draw: Random) -> None:
    there = pods(stage)
    for pod in draw.sample(there, min(3, len(there))):
        delete_pod(stage, pod)


def jobs_deleted(stage: Stage, load: Load, draw: Random) -> None:
    live = sorted(job.name for job in load.live() if job.name in load.submitted)
    for name in draw.sample(live, min(2, len(live))):
        load.deleted.add(name)
        stage.client.delete(load.submitted[name], missing_ok=True, propagationPolicy="Background")


def jobs_suspended(stage: Stage, load: Load, draw: Random) -> None:
    """Suspend jobs without the controller."""
    live = [job for job in load.live() if job.name in load.submitted and not job.suspended]
    for job in draw.sample(live, min(2, len(live))):
        spec: dict[str, Any] = {"suspend": True}
        with gone_is_fine():
            stage.client.patch(
                load.submitted[job.name],
                {"spec": spec if job.kind == "Job" else {"runPolicy": spec}},
            )


def configuration_changed(stage: Stage, load: Load, draw: Random) -> None:
    for gpus in load.quotas.solo:
        stage.apply([solo(gpus)])
        stage.last(1.0)


FAULTS: dict[str, Act] = {
    "leader killed": leader_killed,
    "both controllers killed": both_killed,
    "leader frozen (SIGSTOP)": leader_frozen,
    "clock of a controller jumps": clock_jumped,
    "database killed": database_killed,
    "database frozen": database_frozen,
    "database slow": database_slow,
    "responses to commits lost": commits_lost,
    "responses to statements lost": statements_lost,
    "commits delayed": commits_late,
    "API server killed": api_server_killed,
    "API server frozen": api_server_frozen,
    "responses to API writes lost": api_answers_lost,
    "API writes delayed": api_writes_late,
    "watches cut": watches_cut,
    "writes denied by a policy": writes_refused,
    "node lost": node_lost,
    "node cordoned, pods deleted": node_cordoned,
    "node deleted": node_deleted,
    "pods failed": pods_failed,
    "pods deleted": pods_deleted,
    "jobs deleted": jobs_deleted,
    "jobs suspended by others": jobs_suspended,
    "configuration changed": configuration_changed,
}


_API, _WIRE, _DATABASE, _STATEMENTS = "API server", "API connections", "database", "statements"
_PARTS: dict[Act, str] = {
    leader_killed: "controllers",
    both_killed: "controllers",
    leader_frozen: "controllers",
    clock_jumped: "clock",
    database_killed: _DATABASE,
    database_frozen: _DATABASE,
    database_slow: _STATEMENTS,
    commits_lost: _STATEMENTS,
    commits_late: _STATEMENTS,
    statements_lost: _STATEMENTS,
    api_server_killed: _API,
    api_server_frozen: _API,
    api_answers_lost: _WIRE,
    api_writes_late: _WIRE,
    watches_cut: _WIRE,
    writes_refused: "policies",
    node_lost: "nodes",
    node_cordoned: "nodes",
    node_deleted: "nodes",
    pods_failed: "pods",
    pods_deleted: "pods",
    jobs_deleted: "jobs",
    jobs_suspended: "jobs",
    configuration_changed: "configuration",
}
"""The part that each fault concerns. Of several faults at a time, no two concern the same part."""
_ASKING = frozenset({"policies", "nodes", "pods", "jobs"})
"""Parts whose faults are requests to the API server, so that it must answer."""
MOST = 3
"""Faults at a time."""


def compatible(names: Sequence[str]) -> bool:
    """Whether these faults can be injected at the same time."""
    parts = [_PARTS[FAULTS[name]] for name in names]
    return len({*parts}) == len(parts) and not (_API in parts and _ASKING & {*parts})


def together(names: Sequence[str], draw: Random) -> Iterator[tuple[str, ...]]:
    """Each fault once, in groups of one to three that are compatible."""
    left = list(names)
    while left:
        group, most = [left.pop(0)], draw.randint(1, MOST)
        for name in [*left]:
            if len(group) < most and compatible([*group, name]):
                group.append(name)
                left.remove(name)
        yield tuple(group)


def inject(names: Sequence[str], stage: Stage, load: Load, draw: Random) -> None:
    """Inject faults at the same time, and wait until all of them have ended."""
    # The database ends with the thread that starts it, so the fault of the database is the one of this thread.
    own, *others = sorted(names, key=lambda name: _PARTS[FAULTS[name]] != _DATABASE)
    with ThreadPoolExecutor(MOST) as pool:
        acts = [pool.submit(FAULTS[name], stage, load, Random(draw.random())) for name in others]
        FAULTS[own](stage, load, Random(draw.random()))
    for act in acts:
        act.result()


def pods(stage: Stage) -> list[PodRecord]:
    """Pods that use resources of a node, without those of probes."""
    _, found = stage.recorder.now()
    return [
        pod
        for pod in found
        if pod.namespace == NAMESPACE
        and pod.node
        and not pod.terminal
        and not pod.name.startswith("probe")
    ]


def delete_pod(stage: Stage, pod: PodRecord) -> None:
    stage.client.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}", missing_ok=True)


def until_struck(stage: Stage, relay: Relay, seconds: float) -> None:
    """Wait for the duration of a fault, and on until a request has met it: the load can pause for that long."""
    before = len(relay.struck)
    stage.last(seconds)
    stage.until(lambda: len(relay.struck) > before, STRUCK_SECONDS)


@contextmanager
def judging(relay: Relay, draw: Random, fault: Fault, share: float, *begins: str) -> Iterator[None]:
    """Apply the fault to this share of the requests that begin with one of these texts."""
    seeded = Random(draw.random())

    def judge(request: Request) -> Fault | None:
        hit = request.does.startswith(begins) and request.does
        return fault if hit and seeded.random() < share else None

    relay.judge = judge
    try:
        yield
    finally:
        relay.judge = lambda _: None


@contextmanager
def gone_is_fine() -> Iterator[None]:
    try:
        yield
    except ApiServerError as error:
        if error.status not in (404, 409, 422):
            raise


@contextmanager
def refusing(stage: Stage, group: str, resource: str) -> Iterator[None]:
    """Refuse the controller's updates of this resource."""
    name = "chaos-refuses"
    version = "v1"
    meta = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    rule = {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": [resource],
        "operations": ["UPDATE"],
    }
    policy = {
        **meta,
        "kind": "ValidatingAdmissionPolicy",
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [
                {"name": "by", "expression": f"request.userInfo.username == '{CONTROLLER}'"}
            ],
            "validations": [{"expression": "false", "message": "refused by a test"}],
        },
    }
    binding = {
        **meta,
        "kind": "ValidatingAdmissionPolicyBinding",
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    stage.client.apply(policy, binding)
    try:
        yield
    finally:
        for one in (binding, policy):
            stage.client.delete(stage.client.path_of(one), missing_ok=True)
        # The API server reads policies every second. A start that it refuses later is retried after a minute.
        stage.wait(POLICY_SECONDS)
