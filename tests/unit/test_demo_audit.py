"""The audit sees every kind of wrong state, names it, and stays silent about what is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.demo.audit import AuditFinding, checks
from queuectl.demo.recorder import Recording
from queuectl.domain.jobs import PodPhase
from queuectl.domain.quantity import GPU, Resources
from tests.support.recordings import Script

WHOLE, DOMAIN, CAPACITY, ONCE, QUOTA = range(5)
LIMITS = {("team", "queue"): Resources({GPU: 24})}


def audit(script: Script) -> list[AuditFinding]:
    return checks(script.recording, limits=LIMITS)


def failed(script: Script) -> list[int]:
    return [i for i, finding in enumerate(audit(script)) if not finding.ok]


def cluster() -> Script:
    script = Script()
    for name, rack in (("a", "r0"), ("b", "r0"), ("c", "r1"), ("d", "r1")):
        script.node(name, rack)
    return script


def runs_whole(script: Script) -> None:
    script.job("gang", 2, rack=True)
    for key in script.start("gang", ["a", "b"]):
        script.end(key)
    script.succeed("gang")


def is_preempted_and_runs_again(script: Script) -> None:
    script.job("gang", 2, rack=True)
    script.stop(script.start("gang", ["a", "b"]))
    script.start("gang", ["c", "d"], attempt=2)


def takes_a_place_just_freed(script: Script) -> None:
    script.job("first", 1)
    script.job("second", 1)
    [key] = script.start("first", ["a"])
    script.end(key)
    script.start("second", ["a"])


def is_evicted_while_it_starts(script: Script) -> None:
    script.job("gang", 2)
    script.change_job("gang", suspended=False, attempt=1)
    keys = [script.born("gang", rank) for rank in range(2)]
    script.pin(keys[0], "a")
    script.bind(keys[0])
    script.stop(keys)


def replaces_a_failed_pod(script: Script) -> None:
    script.job("gang", 2)
    first, _ = script.start("gang", ["a", "b"])
    script.end(first, PodPhase.FAILED)
    again = script.born("gang", 0)
    script.pin(again, "a")


def replaces_a_pod_while_the_devices_of_its_node_are_missing(script: Script) -> None:
    script.job("gang", 2)
    first, _ = script.start("gang", ["a", "b"])
    script.node("a", gpus=0)
    script.end(first, PodPhase.FAILED)
    script.pin(script.born("gang", 0), "a")


def ends_before_its_workers_do(script: Script) -> None:
    """As a PyTorchJob whose master is done: it no longer holds quota."""
    script.job("gang", 2)
    script.start("gang", ["a", "b"])
    script.succeed("gang")
    script.job("next", 2)
    script.start("next", ["c", "d"])


@pytest.mark.parametrize(
    "story",
    [
        runs_whole,
        is_preempted_and_runs_again,
        takes_a_place_just_freed,
        is_evicted_while_it_starts,
        replaces_a_failed_pod,
        replaces_a_pod_while_the_devices_of_its_node_are_missing,
        ends_before_its_workers_do,
    ],
)
def test_a_gang_that_behaves_is_not_a_finding(story: Callable[[Script], None]):
    script = cluster()
    story(script)
    assert failed(script) == []


def lets_a_pod_go_before_all_exist(script: Script) -> None:
    script.job("gang", 2)
    script.change_job("gang", suspended=False, attempt=1)
    script.pin(script.born("gang", 0), "a")
    script.bind("gang/0.1")
    second = script.born("gang", 1)
    script.pin(second, "b")
    script.bind(second)


def stays_partly_placed(script: Script) -> None:
    script.job("gang", 2)
    script.change_job("gang", suspended=False, attempt=1)
    keys = [script.born("gang", rank) for rank in range(2)]
    script.pin(keys[0], "a")
    script.bind(keys[0])


def leaves_its_rack(script: Script) -> None:
    script.job("gang", 2, rack=True)
    script.start("gang", ["b", "c"])


def overfills_a_node(script: Script) -> None:
    script.job("gang", 2)
    script.start("gang", ["a", "a"])


def pins_where_another_still_runs(script: Script) -> None:
    script.job("first", 1)
    script.job("second", 1)
    script.start("first", ["a"])
    script.change_job("second", suspended=False, attempt=1)
    script.pin(script.born("second", 0), "a")
    script.end("second/0.1", PodPhase.FAILED)
    script.succeed("second")


def starts_again_before_it_has_stopped(script: Script) -> None:
    script.job("gang", 1, 4)
    script.start("gang", ["a"])
    script.start("gang", ["b"], attempt=2)


def runs_one_rank_twice(script: Script) -> None:
    script.job("gang", 2, 4)
    script.start("gang", ["a", "b"])
    script.twin("gang/0.1", "c")


def takes_more_than_its_quota(script: Script) -> None:
    script.job("gang", 4)
    script.start("gang", ["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("story", "findings"),
    [
        (lets_a_pod_go_before_all_exist, [WHOLE]),
        (stays_partly_placed, [WHOLE]),
        (leaves_its_rack, [DOMAIN]),
        (overfills_a_node, [CAPACITY]),
        (pins_where_another_still_runs, [CAPACITY]),
        (starts_again_before_it_has_stopped, [ONCE]),
        (runs_one_rank_twice, [ONCE]),
        (takes_more_than_its_quota, [QUOTA]),
    ],
)
def test_each_wrong_state_is_found_and_no_other_is_blamed(
    story: Callable[[Script], None], findings: list[int]
):
    script = cluster()
    story(script)
    assert failed(script) == findings


def test_findings_carry_their_numbers():
    script = cluster()
    is_preempted_and_runs_again(script)
    whole, domain, capacity, once, quota = (finding.numbers for finding in audit(script))
    assert whole.startswith("2 starts of 1 gangs")
    assert "4 nodes" in capacity
    assert domain == "1 gangs with a required topology, 2 placements"
    assert "at most 16 of 32 GPUs" in capacity
    assert once == "1 gangs"
    assert quota == "team/queue at most 16 of 24 GPUs"


def test_a_problem_names_gang_and_place():
    script = cluster()
    leaves_its_rack(script)
    [problem] = audit(script)[DOMAIN].problems
    assert "team/gang" in problem
    assert "r0, r1" in problem


def test_jobs_without_a_queue_are_not_gangs_but_use_capacity():
    script = cluster()
    script.job("gang", 1)
    script.start("gang", ["a"])
    script.jobs.clear()
    events = tuple(e for e in script.recording.events if e.key != "gang")
    overfull = Script(list(events), dict(script.pods))
    overfull.twin("gang/0.1", "a")
    whole, _, capacity, *_ = checks(overfull.recording)
    assert whole.numbers.startswith("0 starts")
    assert not capacity.ok


PLACES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)
SIZES = st.integers(min_value=1, max_value=8)


@given(PLACES, SIZES)
def test_capacity_is_judged_as_by_adding_up(places: list[str], gpus: int):
    script = cluster()
    script.job("gang", len(places), gpus)
    script.start("gang", places)
    [capacity] = [one for one in audit(script) if one.name == "no node exceeds its capacity"]
    assert capacity.ok == (max(Counter(places).values()) * gpus <= 8)


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_a_start_is_whole_exactly_when_every_pod_got_a_node(bound: list[bool]):
    script = cluster()
    script.job("gang", len(bound), 1)
    script.change_job("gang", suspended=False, attempt=1)
    keys = [script.born("gang", rank) for rank in range(len(bound))]
    for key, there in zip(keys, bound, strict=True):
        script.pin(key, "a")
        if there:
            script.bind(key)
    assert (WHOLE in failed(script)) == (not all(bound))


def test_an_empty_recording_has_no_findings():
    assert all(finding.ok for finding in checks(Recording(())))
