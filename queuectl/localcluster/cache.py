"""The cache of built programs: one folder for each unit and version, with a manifest for checks.

Layout under the root (`$QUEUECTL_CACHE`, else `$XDG_CACHE_HOME/queuectl`, else `~/.cache/queuectl`):

    localcluster/<unit>-<version>-<recipe>/{bin/…, files/…, manifest.json}
    localcluster/<unit>-<version>-<recipe>.lock    held while one process builds it
    go/{mod,build,toolchain}                       the Go client's own caches
    logs/                                          logs of failed builds

`<recipe>` is a digest of how the unit is built, so that a changed recipe never uses an old program.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queuectl.localcluster.versions import Unit

_MANIFEST = "manifest.json"
_CHUNK = 1 << 20


def root() -> Path:
    """The cache folder of queuectl on this machine. It does not always exist."""
    if explicit := os.environ.get("QUEUECTL_CACHE"):
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "queuectl"


def folder(unit: Unit) -> Path:
    """The folder of the programs and files of a unit."""
    recipe = {
        key: value for key, value in asdict(unit).items() if key not in ("minutes", "reports")
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    return root() / "localcluster" / f"{unit.key}-{digest[:8]}"


def damage(unit: Unit, *, thorough: bool = False) -> str | None:
    """The damage of a cached unit.

    Args:
        unit: The unit to check.
        thorough: Compare digests, which reads every byte (about a second for all units).  Otherwise only files
            with another size or modification time than in the manifest are compared by digest.

    Returns:
        None for a complete unit, else the damage as part of a sentence.
    """
    home = folder(unit)
    try:
        manifest = json.loads((home / _MANIFEST).read_bytes())
    except FileNotFoundError:
        return "not built yet"
    except ValueError:
        return f"{home / _MANIFEST} is not readable"
    for name, expected in manifest.items():
        path = home / name
        try:
            seen = path.stat()
        except FileNotFoundError:
            return f"{path} is missing"
        if seen.st_size != expected["size"]:
            return f"{path} has {seen.st_size} bytes instead of {expected['size']}"
        untouched = seen.st_mtime_ns == expected["mtime_ns"] and not thorough
        if not untouched and _digest(path) != expected["sha256"]:
            return f"{path} differs from the built file"
    return None


@contextlib.contextmanager
def locked(unit: Unit, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the unit's lock, so that one of two processes builds, and the other uses the result.

    Args:
        unit: The unit to be built.
        waiting: Called once if another process holds the lock.
    """
    home = folder(unit)
    path = home.with_name(f"{home.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def adopt(unit: Unit, built: Path) -> None:
    """Move a folder of built programs with a manifest into the cache, in one step."""
    manifest = {}
    for path in sorted(path for path in built.rglob("*") if path.is_file()):
        seen = path.stat()
        manifest[str(path.relative_to(built))] = {
            "size": seen.st_size,
            "mtime_ns": seen.st_mtime_ns,
            "sha256": _digest(path),
        }
    (built / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    home = folder(unit)
    shutil.rmtree(home, ignore_errors=True)
    built.rename(home)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
