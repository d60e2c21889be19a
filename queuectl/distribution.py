"""The distribution of queuectl: its name in package registries, its version, and how to install it.

The command and the package are ``queuectl``. The name ``queuectl`` in the Python Package Index belongs to another project, so the
distribution has its own name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "queuectl-k8s"
"""The name in the metadata of the installed distribution."""

PUBLISHED: Final = False
"""Whether a release is in the Python Package Index. Until then, no message names the distribution in an install command."""

OTHER_PROJECT: Final = "queuectl"
"""A distribution of another project. It has the same command and the same package, so the one that is installed last replaces files."""

_INSTALLERS: Final = {
    "uv-receipt.toml": "uv tool install --force",
    "pipx_metadata.json": "pipx install --force",
}
"""Files in the environment of a tool, and the command that replaces the tool with another choice of extras."""


def version() -> str:
    """The version of the installed distribution."""
    from importlib.metadata import version as version_of

    return version_of(DISTRIBUTION)


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation, with the place where it works."""
    prefix = Path(sys.prefix)
    installer = next(
        (command for name, command in _INSTALLERS.items() if (prefix / name).exists()),
        "pip install",
    )
    if PUBLISHED:
        return f"{installer} '{DISTRIBUTION}[{extra}]'"
    return f"{installer} '.[{extra}]' in a clone of queuectl"


def conflict() -> str | None:
    """The sentence that names a conflicting distribution and the commands that end the conflict; None without one."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        other = distribution(OTHER_PROJECT)
    except PackageNotFoundError:
        return None
    return (
        f"the distribution {OTHER_PROJECT} {other.version} of another project is installed in this environment and replaces files of "
        f"{DISTRIBUTION}: uninstall both (pip uninstall {OTHER_PROJECT} {DISTRIBUTION}), then install {DISTRIBUTION} again"
    )
