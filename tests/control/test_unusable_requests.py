"""Requests that no gang can have: the reason names the error, the database can hold what was read, and other gangs start."""

from __future__ import annotations

from queuectl.domain.gates import INVALID
from queuectl.domain.gpus import MOST_GPUS
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from queuectl.objects import keys
from tests.control.rig import Rig, gang, rig
from tests.control.test_pod_groups import group_entry, pod
from tests.support.jobs import Document


def asking(resource: str, amount: str) -> Document:
    amounts = {resource: amount}
    return {"requests": amounts, "limits": amounts}


def job(resource: str, amount: str) -> Document:
    document = dict(gang("Job", "huge", 1))
    [container] = document["spec"]["template"]["spec"]["containers"]
    container["resources"] = asking(resource, amount)
    return document


def jobset(resource: str, amount: str, pods: int = 1) -> Document:
    """20 replicated jobs, which are too large only together."""
    document = dict(gang("JobSet", "huge", 2))
    container = {"name": "main", "image": "i", "resources": asking(resource, amount)}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"parallelism": pods, "completions": pods, "template": template}
    document["spec"]["replicatedJobs"] = [
        {"name": f"w{number}", "replicas": 1, "template": {"spec": spec}} for number in range(20)
    ]
    return document


async def until_refused(world: Rig, uid: str, state: State = State.PENDING) -> Entry:
    entry = await world.until_entry(
        uid, lambda entry: entry.reason.code is Code.MISCONFIGURED, "refused"
    )
    assert entry.state is state
    return entry


HUGE: dict[str, tuple[Document, str]] = {
    f"{amount} {resource} in a pod": (job(resource, amount), message)
    for resource, amount, message in (
        ("nvidia.com/gpu", "1G", f"its pods ask for {MOST_GPUS:,} GPUs or more (nvidia.com/gpu)"),
        ("nvidia.com/gpu", "1P", f"its pods ask for {MOST_GPUS:,} GPUs or more (nvidia.com/gpu)"),
        ("nvidia.com/gpu", "10P", "nvidia.com/gpu is too large"),
        ("nvidia.com/gpu", "9223372036854775807", "nvidia.com/gpu is too large"),
        ("amd.com/gpu", "1E", "amd.com/gpu is too large"),
        ("memory", "1Ei", "memory is too large"),
        ("memory", "9223372036854775807", "memory is too large"),
        ("cpu", "9223372036854775807", "cpu is too large"),
        ("ephemeral-storage", "7Ei", "ephemeral-storage is too large"),
        ("example.com/x", "1E", "example.com/x is too large"),
    )
} | {
    f"{amount} {resource} in 20 podsets of {pods}": (jobset(resource, amount, pods), message)
    for resource, amount, pods, message in (
        ("memory", "512Ti", 1000, "all pods together ask for"),
        ("cpu", "1T", 100_000, "all pods together ask for"),
        ("example.com/x", "1P", 1000, "all pods together ask for"),
        ("nvidia.com/gpu", "100M", 1, f"its pods ask for {MOST_GPUS:,} GPUs or more"),
        ("nvidia.com/gpu", "1T", 2**31 - 1, "all pods together ask for"),
    )
}


async def test_requests_that_are_too_large_name_their_resource(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        submitted = {}
        for number, (case, (document, message)) in enumerate(HUGE.items()):
            document["metadata"]["name"] = f"huge-{number}"
            submitted[world.cluster.submit(document)] = (case.split()[1], message)
        other = world.cluster.submit(gang("Job", "other", 1))
        await world.until_state(other, State.RUNNING)
        for uid, (resource, message) in submitted.items():
            entry = await until_refused(world, uid)
            assert message in entry.reason.message
            assert resource in entry.reason.message
            assert entry.gpus <= MOST_GPUS


async def test_a_group_of_pods_that_is_too_large_together_names_its_resource(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        document = pod("huge", "together", 10_000, pod_group_fast_admission="true")
        document["spec"]["containers"][0]["resources"] = asking("memory", "512Ti")
        world.cluster.submit_pod(document)
        pending = await group_entry(world, "together", State.PENDING)
        entry = await until_refused(world, pending.uid)
        assert "all pods together ask for" in entry.reason.message


GATES = (
    "after the review",
    "after Job/other:ok",
    "a b",
    "x\x1b]0;owned\x07\x1b[31mred",
    "x" * 64,
    "/x",
    "UPPER/x",
    "x" * 200_000,
    ",".join(f"example.com/{number}" for number in range(101)),
)


async def test_a_name_that_no_admission_gate_can_have_is_an_error_of_the_job(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        submitted = {}
        for number, gate in enumerate(GATES):
            for prefix in (keys.PREFIX, keys.KUEUE_PREFIX):
                key = prefix + keys.ADMISSION_GATED_BY
                name = f"gated-{number}-{prefix[0]}"
                document = gang("Job", name, 1, annotations={key: gate})
                submitted[world.cluster.submit(document)] = key
        other = world.cluster.submit(gang("Job", "other", 1))
        await world.until_state(other, State.RUNNING)
        for uid, key in submitted.items():
            entry = await until_refused(world, uid, State.HELD)
            assert f"metadata.annotations: {key}: " in entry.reason.message
            assert entry.reason.message.isprintable()
            assert len(entry.reason.message) < 300
            assert entry.gates == (INVALID,)


async def test_a_job_waits_for_a_corrected_admission_gate_and_starts_when_it_is_removed(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        key = keys.PREFIX + keys.ADMISSION_GATED_BY
        document = gang("Job", "gated", 1, annotations={key: "after the review"})
        entry = await until_refused(world, world.cluster.submit(document), State.HELD)
        corrected = {"metadata": {"annotations": {key: "review"}}}
        world.cluster.user_patch("Job", "default", "gated", corrected)
        await world.until_entry(
            entry.uid,
            lambda entry: entry.reason.code is Code.ADMISSION_GATED and entry.gates == ("review",),
            "held by the corrected gate",
        )
        removed = {"metadata": {"annotations": {key: None}}}
        world.cluster.user_patch("Job", "default", "gated", removed)
        await world.until_state(entry.uid, State.RUNNING)
