"""The name by which the program was called: ``queuectl``, or ``kubectl queuectl`` for the kubectl plugin."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Final

NAME: Final = "queuectl"
PLUGIN: Final = "kubectl-queuectl"


def called() -> str:
    """The words that begin a command line."""
    return f"kubectl {NAME}" if PurePath(sys.argv[0]).stem == PLUGIN else NAME
