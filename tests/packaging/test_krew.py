"""The plugin for krew: its manifest follows the rules of krew, and its archive runs in the layout in which krew installs it."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from tests.packaging import krew
from tests.packaging.versions import ROOT, version

RELEASE = ROOT / ".github" / "workflows" / "release.yml"


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder with a wheel, and what is made of it for a release."""
    wheel = tmp_path / f"queuectl_k8s-{version()}-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    assert krew.main(str(tmp_path), "owner/name") == 0
    return tmp_path


def faults(name: str, plugin: dict[str, Any]) -> list[str]:
    """The rules of krew that a manifest breaks (``validate-krew-manifest``, and those of the index of plugins)."""
    spec = plugin["spec"]
    broken = {
        "apiVersion": plugin["apiVersion"] != "krew.googlecontainertools.github.com/v1alpha2",
        "kind": plugin["kind"] != "Plugin",
        "name of the file": plugin["metadata"]["name"] != name,
        "name": not re.fullmatch(r"[\w-]+", name) or name.startswith("kubectl-"),
        "version": not re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", spec["version"]),
        "shortDescription": not 0 < len(spec["shortDescription"]) <= 50,
        "no period": spec["shortDescription"].endswith("."),
        "homepage": not spec["homepage"].startswith("https://"),
        "description": not spec["description"].strip(),
        "platforms": not spec["platforms"],
        "unknown fields": bool(
            spec.keys()
            - {"version", "homepage", "shortDescription", "description", "caveats", "platforms"}
        ),
    }
    for platform in spec["platforms"]:
        path = PurePosixPath(platform["bin"])
        broken |= {
            "uri": not re.fullmatch(r"https://\S+\.(tar\.gz|zip)", platform["uri"]),
            "sha256": not re.fullmatch(r"[0-9a-f]{64}", platform["sha256"]),
            "bin": path.is_absolute() or ".." in path.parts,
            "fields": bool(platform.keys() - {"uri", "sha256", "selector", "files", "bin"}),
        }
    return [rule for rule, is_broken in broken.items() if is_broken]


def test_the_manifest_follows_the_rules_of_krew(dist: Path) -> None:
    plugin = yaml.safe_load((dist / "queuectl.yaml").read_text())
    assert faults("queuectl", plugin) == []
    (platform,) = plugin["spec"]["platforms"]
    (selector,) = platform["selector"]["matchExpressions"]
    assert selector == {"key": "os", "operator": "In", "values": ["linux", "darwin"]}
    assert platform["uri"].endswith(
        f"/owner/name/releases/download/v{version()}/{krew.archive_name()}"
    )
    plugin["spec"]["version"] = "0.1"
    assert faults("queuectl", plugin) == ["version"]


def test_a_manifest_needs_a_repository(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"a wheel")
    krew.main(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [krew.archive_name(), "x.whl"]
    assert krew.archive(tmp_path / "x.whl") == (tmp_path / krew.archive_name()).read_bytes()


def test_the_release_writes_the_manifest_of_its_own_repository() -> None:
    text = RELEASE.read_text()
    assert 'tests.packaging.krew build/dist "${GITHUB_REPOSITORY}"' in text
    assert text.index("make dist") < text.index("tests.packaging.krew") < text.index("attest-build")


def test_the_archive_runs_where_krew_installs_it(dist: Path) -> None:
    """krew unpacks the archive into ``store/NAME/VERSION`` and links ``bin/kubectl-NAME`` to its program."""
    store, programs = dist / "store" / "queuectl" / f"v{version()}", dist / "bin"
    programs.mkdir()
    with tarfile.open(dist / krew.archive_name()) as tar:
        tar.extractall(store, filter="data")
        assert {"LICENSE", krew.LAUNCHER} < set(tar.getnames())
    (programs / "kubectl-queuectl").symlink_to(store / krew.LAUNCHER)
    cache, tools = dist / "cache", dist / "tools"
    tools.mkdir()
    # This uv makes an environment whose program is that of the tests: a test cannot reach the Python Package Index.
    (tools / "uv").write_text(
        f"""#!/bin/sh
echo "$@" >> {dist}/called
[ "$1" = venv ] || exit 0
for folder; do :; done
mkdir -p "$folder/bin"
ln -s {ROOT}/.venv/bin/kubectl-queuectl "$folder/bin/kubectl-queuectl"
"""
    )
    (tools / "uv").chmod(0o755)
    environ = {
        "PATH": f"{programs}:{tools}:{os.environ['PATH']}",
        "HOME": str(dist),
        "XDG_CACHE_HOME": str(cache),
    }
    for _ in range(2):
        done = subprocess.run(
            ["kubectl-queuectl", "version"],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            executable=str(programs / "kubectl-queuectl"),
        )
        assert (done.returncode, version() in done.stdout) == (0, True), done.stderr
    calls = (dist / "called").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["venv", "pip"], "only once"
    assert calls[1].endswith(f"{store}/queuectl_k8s-{version()}-py3-none-any.whl")
