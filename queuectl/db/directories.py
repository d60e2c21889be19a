"""The directories of an embedded server. The path of its socket is short enough for an address, and only its account can read it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from queuectl.db.binaries import ServerAccount, reachable
from queuectl.domain.errors import BadInput

PORT: Final = 5432  # of the socket's name only, and named in URLs so that no PGPORT can change it
_SOCKET: Final = f".s.PGSQL.{PORT}"
_LONGEST_SOCKET_PATH: Final = 103  # the smallest sun_path among our platforms, less its NUL


def default_directory(major: int, environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_STATE_HOME/queuectl/pg<major>``; ``/var/lib/queuectl/pg<major>`` for root if ``nobody`` has no access to it."""
    state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    if os.geteuid() == 0:
        existing = next(folder for folder in (state, *state.parents) if folder.exists())
        if not reachable(existing):
            state = Path("/var/lib")
    return state / "queuectl" / f"pg{major}"


def socket_directory(directory: Path, account: ServerAccount | None) -> Path:
    """A directory beside the data, or a shorter one if the path of the socket is too long for an address."""
    beside = directory / "sock"
    if len(os.fsencode(beside / _SOCKET)) <= _LONGEST_SOCKET_PATH:
        return beside
    short = f"queuectl-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]}"
    runtime = "/run" if account else os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(runtime) < 60 and os.access(runtime, os.W_OK):
        return Path(runtime) / short
    return Path("/tmp") / f"{short}-{os.geteuid()}"  # noqa: S108 - made private and checked before use


def make_private(directory: Path, account: ServerAccount | None) -> None:
    """Make a directory only the server's account may enter, or make sure that an existing one is such.

    Raises:
        BadInput: another account owns it, or other accounts can read it.
    """
    owner = account.uid if account else os.geteuid()
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        if account is not None:
            os.chown(directory, account.uid, account.gid)
    status = directory.lstat()
    if (
        not directory.is_dir()
        or directory.is_symlink()
        or status.st_uid != owner
        or status.st_mode & 0o077
    ):
        raise BadInput(f"{directory} is not a private directory of uid {owner}: remove it")
