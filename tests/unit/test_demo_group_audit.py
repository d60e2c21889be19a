"""The audit finds groups of pods, and groups of LeaderWorkerSets, of which a part starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuectl.demo.audit import checks
from queuectl.domain.jobs import PodPhase
from tests.support.recordings import Script

NAME = "all pods of each group started together"


def cluster() -> Script:
    script = Script()
    for name in "abcd":
        script.node(name)
    return script


def problems(script: Script) -> list[str]:
    """Of all checks of the audit."""
    return [problem for finding in checks(script.recording) for problem in finding.problems]


def starts_whole(script: Script) -> None:
    keys = [script.grouped("g", rank, 2) for rank in range(2)]
    for key, node in zip(keys, "ab", strict=True):
        script.release(key, node)


def starts_again_after_an_eviction(script: Script) -> None:
    keys = [script.grouped("g", rank, 2) for rank in range(2)]
    script.release(keys[0], "a")
    for key in keys:
        script.end(key, PodPhase.FAILED)
        script.gone(key)
    again = [script.grouped("g", rank, 2) for rank in range(2)]
    for key, node in zip(again, "ab", strict=True):
        script.release(key, node, attempt=2)


def starts_again_without_a_pod_that_succeeded(script: Script) -> None:
    first, second = (script.grouped("g", rank, 2) for rank in range(2))
    script.release(first, "a")
    script.release(second, "b")
    script.end(first)
    script.gone(first)
    script.end(second, PodPhase.FAILED)
    script.release(script.grouped("g", 1, 2), "b", attempt=2)


def replaces_a_lost_pod(script: Script) -> None:
    starts_whole(script)
    lost = next(iter(script.pods))
    script.end(lost, PodPhase.FAILED)
    script.gone(lost)
    script.release(script.grouped("g", 0, 2), "c")


def is_followed_by_another_of_its_name(script: Script) -> None:
    starts_whole(script)
    for key in list(script.pods):
        script.end(key)
        script.gone(key)
    again = [script.grouped("g", rank, 2) for rank in range(2)]
    for key, node in zip(again, "ab", strict=True):
        script.release(key, node, workload="another")


def can_start_early(script: Script) -> None:
    script.release(script.grouped("g", 0, 2, fast=True), "a")


def is_of_a_set(script: Script) -> None:
    script.leaderworkerset("s", 2)
    keys = [script.grouped("s-0", rank, None, parent="s") for rank in range(2)]
    for key, node in zip(keys, "ab", strict=True):
        script.release(key, node)


def is_of_a_set_whose_workers_come_later(script: Script) -> None:
    script.leaderworkerset("s", 2, staged=True)
    script.release(script.grouped("s-0", 0, None, parent="s"), "a")
    script.release(script.grouped("s-0", 1, None, parent="s"), "b")


def loses_a_pod_between_the_writes_of_its_release(script: Script) -> None:
    first, second = (script.grouped("g", rank, 2) for rank in range(2))
    script.gone(second)
    script.release(first, "a")
    script.end(first, PodPhase.FAILED)


@pytest.mark.parametrize(
    "story",
    [
        starts_whole,
        loses_a_pod_between_the_writes_of_its_release,
        starts_again_after_an_eviction,
        starts_again_without_a_pod_that_succeeded,
        replaces_a_lost_pod,
        is_followed_by_another_of_its_name,
        can_start_early,
        is_of_a_set,
        is_of_a_set_whose_workers_come_later,
    ],
)
def test_a_group_that_behaves_is_not_a_finding(story: Callable[[Script], None]) -> None:
    script = cluster()
    story(script)
    assert problems(script) == []
    assert NAME in [finding.name for finding in checks(script.recording)]


def starts_before_all_exist(script: Script) -> None:
    script.release(script.grouped("g", 0, 2), "a")
    script.release(script.grouped("g", 1, 2), "b")


def starts_long_after_it_lost_a_pod(script: Script) -> None:
    first, second = (script.grouped("g", rank, 2) for rank in range(2))
    script.gone(second)
    for number in range(10):
        script.node(f"later-{number}")
    script.release(first, "a")
    script.end(first, PodPhase.FAILED)


def starts_with_a_pod_created_after_another_was_deleted(script: Script) -> None:
    script.gone(script.grouped("g", 0, 2))
    script.release(script.grouped("g", 1, 2), "a")
    script.end(next(iter(script.pods)), PodPhase.FAILED)


def starts_in_part(script: Script) -> None:
    first, _ = (script.grouped("g", rank, 2) for rank in range(2))
    script.release(first, "a")


def ends_in_part(script: Script) -> None:
    first, _ = (script.grouped("g", rank, 2) for rank in range(2))
    script.release(first, "a")
    script.end(first)


def starts_again_in_part(script: Script) -> None:
    starts_whole(script)
    for key in list(script.pods):
        script.end(key, PodPhase.FAILED)
        script.gone(key)
    first, _ = (script.grouped("g", rank, 2) for rank in range(2))
    script.release(first, "a", attempt=2)


def of_a_set_starts_before_all_exist(script: Script) -> None:
    script.leaderworkerset("s", 2)
    script.release(script.grouped("s-0", 0, None, parent="s"), "a")
    script.release(script.grouped("s-0", 1, None, parent="s"), "b")


def of_a_set_starts_in_part(script: Script) -> None:
    script.leaderworkerset("s", 2, staged=True)
    script.release(script.grouped("s-0", 0, None, parent="s"), "a")


def early_starts_in_part(script: Script) -> None:
    first, _ = (script.grouped("g", rank, 3, fast=True) for rank in range(2))
    script.release(first, "a")


@pytest.mark.parametrize(
    ("story", "found"),
    [
        (starts_before_all_exist, "team/g: a pod of attempt 1 lost its gates at revision 6, when 1 of 2 pods existed"),
        (starts_long_after_it_lost_a_pod, "team/g: a pod of attempt 1 lost its gates at revision 18, when 1 of 2 pods existed"),
        (starts_with_a_pod_created_after_another_was_deleted, "team/g: a pod of attempt 1 lost its gates at revision 8, when 1 of 2 pods existed"),
        (starts_in_part, "team/g: attempt 1 has 1 of 2 pods on nodes"),
        (ends_in_part, "team/g: attempt 1 has 1 of 2 pods on nodes"),
        (starts_again_in_part, "team/g: attempt 2 has 1 of 2 pods on nodes"),
        (early_starts_in_part, "team/g: attempt 1 has 1 of 2 pods on nodes"),
        (
            of_a_set_starts_before_all_exist,
            "team/s-0: a pod of attempt 1 lost its gates at revision 7, when 1 of 2 pods existed",
        ),
        (of_a_set_starts_in_part, "team/s-0: attempt 1 has 1 of 2 pods on nodes"),
    ],
)  # fmt: skip
def test_a_broken_group_is_found(story: Callable[[Script], None], found: str) -> None:
    script = cluster()
    story(script)
    assert problems(script) == [found]


def test_a_recording_without_groups_has_no_such_check() -> None:
    script = cluster()
    script.job("gang", 1)
    script.start("gang", ["a"])
    assert NAME not in [finding.name for finding in checks(script.recording)]
