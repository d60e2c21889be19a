"""An upgrade from the image of an earlier commit, and back, while 100 gangs run and others are submitted.

    make image REF=e36aec6 && make image && make e2e-real TESTS=tests/upgrade

It writes its timeline to `build/upgrade/timeline.md`.
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

EARLIER: Final = ARCHIVE.with_name(f"{ARCHIVE.stem}-e36aec6.tar")
"""Its replicas do not register."""
REPORT: Final = IMAGES.parent / "upgrade" / "timeline.md"
CONNECTED: Final = "replicas of another release are connected (queuectl)"
REFUSED: Final = f"the schema has {POST}, the second half of the upgrade to a newer release"


@pytest.fixture(scope="module")
def old() -> Release:
    return _release(EARLIER, "make image REF=e36aec6")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """This release with a test-only post revision."""
    made = _release(ARCHIVE, "make image")
    return made.with_post_revision(tmp_path_factory.mktemp("images"))


def _release(archive: Path, command: str) -> Release:
    if sandbox.home() is None:
        pytest.skip("real nodes exist in the sandbox of `make e2e-real` only")
    if not archive.exists():
        pytest.skip(f"no image: run {command} to write {archive}")
    return Release(Archive(archive))


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
    """The pre half, and the earlier image again. The post half is refused beside the earlier release."""
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
    with timeline.step("`queuectl db upgrade` beside an old replica") as step:
        status, printed = home.run(new, "db upgrade")
        assert (status, CONNECTED in printed) == (1, True), printed
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
    """The first pod of the earlier release ends with the reason, so the rollout does not replace the new replicas.

    They lead, but they are not ready: the manifests of the earlier release do not have all of their admission policies.
    """
    with timeline.step("rollback to the earlier image after the post half") as step:
        home.apply(old)
        wait_until(lambda: refusals(home, old) != [], "a refusal", SECONDS)
        hold(30)
        assert home.ready(old) == []
        assert len(home.pods(new)) == REPLICAS
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


def refusals(home: Deployed, old: Release) -> list[str]:
    """The lines with the reason in the logs of the pods of the earlier release."""
    lines = (line for pod in home.pods(old) for line in home.log(pod).splitlines())
    return [line for line in lines if REFUSED in line]


def release_of_leader(home: Deployed, old: Release, new: Release) -> str:
    return {True: "old", False: "new"}[home.leader() in home.pods(old)]


def hold(seconds: float) -> None:
    """Let the load continue."""
    time.sleep(seconds)
