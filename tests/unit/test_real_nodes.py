"""`make e2e-real` on a machine that cannot run containers: it is skipped, and names the reason."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.real import needs


@pytest.mark.parametrize(
    ("limited", "reason"),
    [
        pytest.param(["unshare", "--user", "--map-user=65534"], "need Linux and root", id="user"),
        pytest.param(
            ["unshare", "--mount", "--", "sh", "-c", 'mount -t tmpfs no /sys/fs/cgroup; "$0" "$@"'],
            "need cgroup v1",
            id="no cgroup",
        ),
        pytest.param(
            ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"],
            "need namespaces",
            id="no privilege",
        ),
    ],
)
def test_real_nodes_are_skipped_with_the_reason(limited: list[str], reason: str) -> None:
    if os.geteuid() or needs.machine() is not None:
        pytest.skip("real nodes cannot run on this machine")
    run = [*limited, sys.executable, "-m", "tests.real.sandbox", "false"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"e2e-real: skipped: real nodes {reason}")
