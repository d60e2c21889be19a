"""Folders of the user."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from queuectl.localcluster.errors import LocalClusterError, cause

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@contextlib.contextmanager
def chosen_by(variable: str) -> Iterator[None]:
    """An error of the file system becomes a message that names the variable of the environment, which names another folder.

    Raises:
        LocalClusterError: the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise LocalClusterError(f"{cause(error)}: set {variable} to another folder") from error
