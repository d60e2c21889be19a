"""An upgrade between two images of this tree, and back, while 100 gangs run and others are submitted.

    make image && make e2e-real TESTS=tests/upgrade

The second image has a newer version and two more revisions: a pre half and a post half. It writes its timeline to
`build/upgrade/timeline.md`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from queuectl.demo.audit import checks
from queuectl.demo.recorder import Recorder, Recording
from queuectl.domain.quantity import Resources
from queuectl.localcluster.client import wait_until
from tests.image.archive import Archive
from tests.real import sandbox
from tests.real.deployment import ARCHIVE, IMAGES
from tests.upgrade.installation import REPLICAS, SECONDS, Deployed, deployed
from tests.upgrade.load import GPUS, NAMESPACE, STEADY, Load, Starts, evicted, restarted
from tests.upgrade.release import POST, Release
from tests.upgrade.timeline import Timeline

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

REPORT: Final = IMAGES.parent / "upgrade" / "timeline.md"
REGISTERED: Final = f"{POST} removes what replicas of an earlier release need"
REFUSED: Final = f"the schema has {POST}, the second half of the upgrade to a newer release"


@pytest.fixture(scope="module")
def old() -> Release:
    if sandbox.home() is None:
        pytest.skip("real nodes exist in the sandbox of `make e2e-real` only")
    if not ARCHIVE.exists():
        pytest.skip(f"no image: run make image to write {ARCHIVE}")
    return Release(Archive(ARCHIVE))


@pytest.fixture(scope="module")
def new(old: Release, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return old.newer(tmp_path_factory.mktemp("images"))


def test_an_upgrade_and_a_rollback_lose_no_gang(old: Release, new: Release) -> None:
    with deployed(old, new) as home, Recorder(home.cluster.kubeconfig) as recorder:
        load = Load(home.cluster.client, recorder)
        load.start()
        timeline = Timeline()
        with load.flow():
            upgrade_and_roll_back(timeline, home, old, new)
            upgrade_and_run_the_post_half(timeline, home, old, new)
            fail_to_roll_back(timeline, home, old, new)
        with home.rest(new) as rest:
            known = rest.workloads().values()
        states = [
            (one["state"], one["attempt"]) for one in known if one["name"].startswith("steady-")
        ]
        recorder.settle()
        report(timeline, load, recorder.recording())
        assert states == [("Running", 1)] * STEADY


def test_the_post_half_waits_for_replicas_that_do_not_register(
    old: Release, new: Release, tmp_path: Path
) -> None:
    """Their sessions show that they run. After the post half, they do not start."""
    unregistered = old.without_registration(tmp_path)
    with deployed(unregistered, new) as home:
        home.apply(new)
        wait_until(lambda: bool(home.ready(new)), "a new replica", SECONDS)
        home.pause(paused=True)
        running = home.ready(unregistered)
        _, registered = home.run(new, "db status")
        assert running
        assert not [pod for pod in running if pod in registered]
        connected = f"replicas of another release are connected (queuectl {old.version})"
        refuse_post_half(home, new, connected)
        home.pause(paused=False)
        home.roll_out()
        home.until_leader_of(new)
        assert home.run(new, "db upgrade") == (0, f"{POST}: up to date")
        home.apply(unregistered)
        wait_until(lambda: refusals(home, unregistered) != [], "a refusal", SECONDS)
        assert home.ready(unregistered) == []
        assert home.leader() in home.pods(new)


def report(timeline: Timeline, load: Load, recording: Recording) -> None:
    """Write the timeline and the figures, and check that nothing was lost."""
    limits = {(NAMESPACE, "main"): Resources({"nvidia.com/gpu": GPUS})}
    found = checks(recording, limits=limits)
    violations = [problem for finding in found for problem in finding.problems]
    starts = Starts.of(recording)
    pause = starts.longest_pause(timeline.began, timeline.steps[-1].ended)
    figures = {
        "gangs that run all the time": len(load.steady),
        "gangs submitted and finished during the run": len(load.submitted),
        "gangs lost": len(load.lost()),
        "gangs evicted": len(evicted(recording)),
        "pods restarted": len(restarted(recording)),
        "gangs with two attempts, or nodes or queues with too many pods": len(violations),
        "longest time between two starts, with a submission each two seconds": f"{pause:.1f} s",
    }
    lines = [f"- {name}: {value}" for name, value in figures.items()]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text("\n".join([timeline.table(starts), "", *lines, ""]))
    print(REPORT.read_text())
    assert violations == []
    assert load.lost() == []
    assert evicted(recording) == set()
    assert restarted(recording) == set()


def upgrade_and_roll_back(timeline: Timeline, home: Deployed, old: Release, new: Release) -> None:
    """The pre half, and the earlier image again. The post half is refused alongside the earlier release."""
    with timeline.step("earlier release, without a change") as step:
        wait_until(lambda: len(home.ready(old)) == REPLICAS, "its replicas", SECONDS)
        hold(30)
        step.result = f"leader: {release_of_leader(home, old, new)}"
    with timeline.step(
        "apply the manifests of the new release; pre half; first new replica"
    ) as step:
        home.apply(new)
        wait_until(lambda: bool(home.ready(new)), "a new replica", SECONDS)
        home.pause(paused=True)
        step.result = f"ready: {len(home.ready(old))} old, {len(home.ready(new))} new"
        assert home.ready(old)
    with timeline.step("`queuectl db upgrade` while an old replica runs") as step:
        refuse_post_half(home, new, REGISTERED)
        step.result = "refused"
    with timeline.step("rollout of the new release") as step:
        home.pause(paused=False)
        home.roll_out()
        home.until_leader_of(new)
        step.result = f"leader: {release_of_leader(home, old, new)}"
    with timeline.step("new release, without a change") as step:
        hold(20)
        step.result = f"leader: {release_of_leader(home, old, new)}"
    with timeline.step("rollback to the earlier image before the post half") as step:
        home.apply(old)
        home.roll_out()
        home.until_leader_of(old)
        step.result = f"leader: {release_of_leader(home, old, new)}"
    with timeline.step("earlier release, on the schema after the pre half") as step:
        hold(20)
        step.result = f"leader: {release_of_leader(home, old, new)}"


def upgrade_and_run_the_post_half(
    timeline: Timeline, home: Deployed, old: Release, new: Release
) -> None:
    with timeline.step("upgrade again") as step:
        home.apply(new)
        home.roll_out()
        home.until_leader_of(new)
        step.result = f"leader: {release_of_leader(home, old, new)}"
    with timeline.step("`queuectl db upgrade` without old replicas: post half") as step:
        status, printed = home.run(new, "db upgrade")
        assert status == 0, printed
        step.result = printed
    with timeline.step("new release, on the schema after the post half") as step:
        hold(20)
        step.result = f"leader: {release_of_leader(home, old, new)}"


def fail_to_roll_back(timeline: Timeline, home: Deployed, old: Release, new: Release) -> None:
    """The first pod of the earlier release does not start, so the rollout does not replace the new replicas."""
    with timeline.step("rollback to the earlier image after the post half") as step:
        home.apply(old)
        wait_until(lambda: refusals(home, old) != [], "a refusal", SECONDS)
        hold(30)
        assert home.ready(old) == []
        assert len(home.ready(new)) == REPLICAS
        step.result = f"refused; leader: {release_of_leader(home, old, new)}"
        print(refusals(home, old)[0])
    with timeline.step("manifests of the new release again") as step:
        home.apply(new)
        home.roll_out()
        wait_until(lambda: len(home.ready(new)) == REPLICAS, "its replicas", SECONDS)
        step.result = f"leader: {release_of_leader(home, old, new)}"
    with timeline.step("new release, without a change") as step:
        hold(20)
        step.result = f"leader: {release_of_leader(home, old, new)}"


def refuse_post_half(home: Deployed, new: Release, reason: str) -> None:
    status, printed = home.run(new, "db upgrade")
    assert (status, reason in printed) == (1, True), printed


def refusals(home: Deployed, old: Release) -> list[str]:
    """The lines with the reason in the logs of the pods of the earlier release."""
    lines = (line for pod in home.pods(old) for line in home.log_of_migration(pod).splitlines())
    return [line for line in lines if REFUSED in line]


def release_of_leader(home: Deployed, old: Release, new: Release) -> str:
    return {True: "old", False: "new"}[home.leader() in home.pods(old)]


def hold(seconds: float) -> None:
    """Let the load continue."""
    time.sleep(seconds)
