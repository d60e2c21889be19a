"""Folders of the user."""

from __future__ import annotations

from pathlib import Path

from queuectl.localcluster.errors import LocalClusterError


def expanded(folder: str, variable: str) -> Path:
    """The absolute path of a folder, with the home directory for ``~``.

    Args:
        folder: the folder.
        variable: of the environment, which names another folder.

    Raises:
        LocalClusterError: the user has no home directory, as in a container with a random uid.
    """
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError:
        raise LocalClusterError(
            f"the home directory for {folder} is not known: set {variable} to an absolute path"
        ) from None
