"""The programs that build and run an image."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuectl.localcluster import build, progress
from queuectl.localcluster.versions import Unit

BUILDKIT: Final = Unit(
    name="buildkit",
    module="github.com/moby/buildkit",
    version="v0.34.2",
    programs={"buildkitd": "cmd/buildkitd", "buildctl": "cmd/buildctl"},
    minutes=3.0,
)
_PACKAGES: Final = {"runc": "runc", "mmdebstrap": "mmdebstrap", "unshare": "util-linux"}
"""Programs from packages of Debian, and the name of each package."""


class Unavailable(Exception):
    """This machine cannot build an image."""


@dataclass(frozen=True)
class Programs:
    """The paths of BuildKit's daemon and client, which are built from source once."""

    buildkitd: Path
    buildctl: Path


def require() -> None:
    """Check the user and the installed packages.

    Raises:
        Unavailable: the message names what is missing.
    """
    if os.geteuid() != 0:
        raise Unavailable("building an image needs root: it mounts file systems")
    missing = [package for name, package in _PACKAGES.items() if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"packages are missing: apt-get install {' '.join(missing)}")


def find() -> Programs:
    """BuildKit from the cache, or from its Go module: three minutes on two cores, once."""
    require()
    programs = build.ensure(progress.for_terminal(), units=[BUILDKIT]).programs
    return Programs(programs["buildkitd"], programs["buildctl"])
