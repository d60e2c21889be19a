"""``queuectl cancel`` and label selectors on a real kube-apiserver. tests/unit/test_cli_job_commands.py has more cases on a double."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queuectl.cli.cancel import Cascade, DeletionTarget, delete_each
from queuectl.cli.errors import Exit
from queuectl.client import Client
from queuectl.client.options import ClientOptions
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import NodeSpec
from tests.system.command_line import acting_as, queuectl
from tests.system.installation import Installation, installed

pytestmark = [pytest.mark.operations, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def home() -> Iterator[Installation]:
    with installed(NodeSpec(racks_per_block=1, hosts_per_rack=2)) as installation:
        yield installation


def test_jobs_are_canceled_by_label_with_the_rights_of_the_user(
    home: Installation, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with home.workspace(16) as team:
        for name in ("run", "other"):
            team.job(name, PodSetManifest(1))
        team.pytorchjob("torch", 1, gpus=1)
        for name in ("run", "torch"):
            team.until_state(name, "Running")
        path = f"/apis/batch/v1/namespaces/{team.namespace}/jobs"
        team.client.patch(f"{path}/run", {"metadata": {"labels": {"sweep": "one"}}})
        torch = f"/apis/kubeflow.org/v1/namespaces/{team.namespace}/pytorchjobs/torch"
        team.client.patch(torch, {"metadata": {"labels": {"sweep": "one"}}})
        chosen = ("-l", "sweep=one", "-n", team.namespace)

        def labeled() -> bool:
            return len(queuectl(home, "get", "workloads", *chosen, "-o", "name").out.split()) == 2

        team.until(labeled, "the labels of running jobs are in the ledger")
        assert queuectl(home, "cancel", *chosen).code == Exit.BAD_INPUT
        tried = queuectl(home, "cancel", *chosen, "--dry-run")
        assert (tried.code, tried.out.count("would be deleted")) == (0, 2), tried.err
        eve = acting_as(home, "eve", tmp_path)
        for switch in ("--yes", "--dry-run"):
            refused = queuectl(home, "cancel", *chosen, switch, kubeconfig=eve)
            assert refused.code == Exit.NOT_ALLOWED
            assert refused.err.count('User "eve" cannot delete resource') == 2, refused.err
        uid = team.workload("run")["uid"]
        done = queuectl(home, "cancel", *chosen, "--yes")
        assert (done.code, done.out.count(" deleted\n")) == (0, 2), done.err
        team.until_state("run", "Finished")
        team.until(lambda: not team.client.exists(f"{path}/run"), "the job is deleted")

        # Another job has the name when the deletion arrives.
        job = {"kind": "Job", "namespace": team.namespace, "name": "other", "uid": uid}
        target = DeletionTarget(job, f"{path}/other")
        options = ClientOptions(server=home.controller.api, kubeconfig=str(home.cluster.kubeconfig))
        with Client(options=options) as client:
            assert delete_each(client, [target], Cascade.BACKGROUND, dry_run=False) is Exit.OK
        assert "is deleted already" in capfd.readouterr().out
        assert team.client.exists(f"{path}/other")
        foreground = queuectl(home, "cancel", f"{team.namespace}/other", "--cascade", "foreground")
        assert foreground.code == 0, foreground.err
        team.until(lambda: not team.client.exists(f"{path}/other"), "the job is deleted")
