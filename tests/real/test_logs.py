"""``queuectl logs`` reads the output of real containers. tests/unit/test_cli_job_commands.py has more cases on a double."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuectl.cli.errors import Exit
from queuectl.demo.scenario import PodSetManifest
from tests.real import work
from tests.real.cluster import RealInstallation
from tests.system.command_line import acting_as, queuectl

pytestmark = pytest.mark.real


def test_the_logs_of_a_gang_are_read_by_rank_and_followed(
    installation: RealInstallation, tmp_path: Path
) -> None:
    with installation.workspace(8) as workspace:
        name = f"{workspace.namespace}/train"
        script = "echo rank $JOB_COMPLETION_INDEX; sleep 10; echo done; printf end"
        work.run(workspace, "train", PodSetManifest(2, gpus=2), script)
        early = queuectl(installation, "logs", name)
        assert early.code in (Exit.OK, Exit.NOT_FOUND, Exit.CONFLICT), early.err
        work.until_written(workspace, "train", 2, "rank")
        followed = queuectl(installation, "logs", name, "--rank", "1", "-f")
        assert (followed.code, followed.out) == (0, "rank 1\ndone\nend"), followed.err
        workspace.until_state("train", "Finished")
        every = queuectl(installation, "logs", name, "--all-ranks", "-f", "--since", "1h")
        ranks = {f"[{rank}] {line}" for rank in (0, 1) for line in (f"rank {rank}", "done", "end")}
        assert (every.code, set(every.out.splitlines())) == (0, ranks), every.err
        last = queuectl(installation, "logs", name, "--tail", "1", "--timestamps")
        assert last.out.endswith(" end")
        eve = acting_as(installation, "eve", tmp_path)
        refused = queuectl(installation, "logs", name, "--rank", "0", kubeconfig=eve)
        assert refused.code == Exit.NOT_ALLOWED
        assert 'cannot get resource "pods/log"' in refused.err
        assert queuectl(installation, "logs", name, "--rank", "2").code == Exit.BAD_INPUT
        wrong = queuectl(installation, "logs", name, "-c", "sidecar")
        assert (wrong.code, "sidecar is not valid for pod" in wrong.err) == (2, True), wrong.err
        path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/train"
        workspace.client.delete(path, propagationPolicy="Background")
        workspace.until(lambda: not work.pods(workspace, "train"), "the pods are deleted")
        deleted = queuectl(installation, "logs", name)
        assert (deleted.code, "deleted with their logs" in deleted.err) == (3, True), deleted.err


def test_several_containers_need_a_choice(installation: RealInstallation) -> None:
    with installation.workspace(8) as workspace:
        name = f"{workspace.namespace}/pair"
        document = work.job(workspace, "pair", PodSetManifest(1, gpus=1), "echo main")
        containers = document["spec"]["template"]["spec"]["containers"]
        side = {key: value for key, value in containers[0].items() if key != "resources"}
        containers.append({**side, "name": "side", "command": ["sh", "-c", "echo side"]})
        workspace.submit(document)
        workspace.until_state("pair", "Finished")
        refused = queuectl(installation, "logs", name)
        assert refused.code == Exit.BAD_INPUT
        assert f"choose one with -c: {containers[0]['name']}, side" in refused.err
        assert queuectl(installation, "logs", name, "-c", "side").out == "side\n"
