"""The demo's verdict: the gangs that were evicted, that finished, and that wait, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from queuectl.demo.audit import AuditFinding
from queuectl.demo.scenario import Expected, Gang, SubmissionPhase
from queuectl.demo.verdict import measured, reclaimed, scraped, verdict
from queuectl.domain.utilization import UseState
from queuectl.objects import keys
from tests.support.recordings import RACK, Script

PLACED, VICTIM, FINISHED, NEVER = range(4)


def gang(name: str, **fields: Any) -> Gang:
    labels = {keys.PREFIX + keys.PRIORITY_CLASS: "batch"}
    meta = {"name": name, "namespace": "team", "labels": labels}
    return Gang({"kind": "Job", "metadata": meta}, 8, **fields)


GANGS = [
    gang("busy", within=RACK),
    gang("idle", expected=Expected.IS_PREEMPTED),
    gang("urgent", phase=SubmissionPhase.URGENT),
    gang("wide", expected=Expected.NEVER_FITS),
]
NEVER_FITS = {"team/wide": {"code": "ShapeNeverFits", "message": "too wide"}}


def stage() -> Script:
    script = Script()
    for name, rack in (("a", "r0"), ("b", "r0"), ("c", "r1"), ("d", "r1")):
        script.node(name, rack)
    for name in ("busy", "idle", "urgent", "wide"):
        script.job(name, 2)
    return script


def finish(script: Script, name: str, pods: list[str]) -> None:
    for key in pods:
        script.end(key)
    script.succeed(name)


def as_it_should_be(script: Script) -> None:
    busy = script.start("busy", ["a", "b"])
    script.stop(script.start("idle", ["c", "d"]))
    finish(script, "urgent", script.start("urgent", ["c", "d"]))
    finish(script, "idle", script.start("idle", ["c", "d"], attempt=2))
    finish(script, "busy", busy)


def the_busy_one_goes(script: Script) -> None:
    finish(script, "idle", script.start("idle", ["c", "d"]))
    script.stop(script.start("busy", ["a", "b"]))
    finish(script, "urgent", script.start("urgent", ["a", "b"]))
    finish(script, "busy", script.start("busy", ["a", "b"], attempt=2))


def the_urgent_one_does_not_wait(script: Script) -> None:
    busy = script.start("busy", ["a", "b"])
    idle = script.start("idle", ["c", "d"])
    urgent = script.start("urgent", ["c", "d"])
    script.stop(idle)
    finish(script, "urgent", urgent)
    finish(script, "idle", script.start("idle", ["c", "d"], attempt=2))
    finish(script, "busy", busy)


def one_sits_in_two_racks(script: Script) -> None:
    script.stop(script.start("idle", ["a", "d"]))
    finish(script, "urgent", script.start("urgent", ["c", "d"]))
    finish(script, "idle", script.start("idle", ["c", "d"], attempt=2))
    finish(script, "busy", script.start("busy", ["b", "c"]))


def one_does_not_finish(script: Script) -> None:
    script.start("busy", ["a", "b"])
    script.stop(script.start("idle", ["c", "d"]))
    finish(script, "urgent", script.start("urgent", ["c", "d"]))
    finish(script, "idle", script.start("idle", ["c", "d"], attempt=2))


def what_never_fits_is_resumed(script: Script) -> None:
    as_it_should_be(script)
    script.change_job("wide", suspended=False)


@pytest.mark.parametrize(
    ("story", "findings"),
    [
        (as_it_should_be, []),
        (the_busy_one_goes, [VICTIM]),
        (the_urgent_one_does_not_wait, [VICTIM]),
        (one_sits_in_two_racks, [PLACED]),
        (one_does_not_finish, [FINISHED]),
        (what_never_fits_is_resumed, [NEVER]),
    ],
)
def test_the_verdict_names_what_went_wrong(story: Callable[[Script], None], findings: list[int]):
    script = stage()
    story(script)
    found = verdict(GANGS, script.recording, NEVER_FITS)
    assert [i for i, finding in enumerate(found) if not finding.ok] == findings


@pytest.mark.parametrize("said", [{}, {"team/wide": {"code": "WaitingForQuota", "message": ""}}])
def test_waiting_for_another_reason_is_not_enough(said: dict[str, Any]):
    script = stage()
    as_it_should_be(script)
    assert not verdict(GANGS, script.recording, said)[NEVER].ok


ACTIVE, IDLE, UNKNOWN = {UseState.WARMUP, UseState.ACTIVE}, {UseState.IDLE}, {UseState.UNKNOWN}


@pytest.mark.parametrize(
    ("uses", "problems"),
    [
        ({"team/busy": ACTIVE, "team/idle": IDLE | ACTIVE}, ()),
        ({"team/busy": UNKNOWN, "team/idle": IDLE}, ()),
        ({"team/busy": IDLE, "team/idle": IDLE}, ("team/busy was classified as idle",)),
        ({"team/busy": ACTIVE, "team/idle": UNKNOWN}, ("team/idle was never classified as idle",)),
        ({}, ("team/idle was never classified as idle",)),
    ],
)
def test_only_the_idle_gang_is_classified_as_idle(
    uses: dict[str, set[UseState]], problems: tuple[str, ...]
):
    assert measured(GANGS, uses).problems == problems


@pytest.mark.parametrize(
    ("answers", "numbers", "problems"),
    [
        ((4, 80, 3), "4 of 4 GPU exporters; 80 scrapes, 3 failed", ()),
        (
            (3, 60, 20),
            "3 of 4 GPU exporters; 60 scrapes, 20 failed",
            ("1 exporters were never reached",),
        ),
        (
            (None, None, None),
            "0 of 4 GPU exporters; 0 scrapes, 0 failed",
            ("4 exporters were never reached",),
        ),
    ],
)
def test_every_exporter_was_reached_at_least_once(
    answers: tuple[int | None, ...], numbers: str, problems: tuple[str, ...]
):
    remaining = iter(answers)

    def query(_: str) -> list[dict[str, Any]]:
        number = next(remaining)
        return [] if number is None else [{"metric": {}, "value": [0.0, str(number)]}]

    assert scraped(query, 4) == AuditFinding(
        "Prometheus scraped the GPU exporter of every node", numbers, problems
    )


@pytest.mark.parametrize(
    ("reasons", "problems"),
    [
        ({"team/idle": ["IdleReclaim"]}, ()),
        ({"team/idle": ["InClusterQueue"]}, ("team/idle was preempted for ['InClusterQueue']",)),
        ({}, ("team/idle was preempted for nothing",)),
        (
            {"team/idle": ["IdleReclaim"], "team/busy": ["IdleReclaim"]},
            ("team/busy was preempted for ['IdleReclaim']",),
        ),
    ],
)
def test_only_the_idle_gang_is_evicted_for_its_idleness(
    reasons: dict[str, list[str]], problems: tuple[str, ...]
):
    assert reclaimed(GANGS, reasons).problems == problems


def test_a_gang_without_a_record_fails_the_verdict():
    script = stage()
    [finding] = verdict([*GANGS, gang("ghost")], script.recording, NEVER_FITS)
    assert finding.problems == ("team/ghost",)
