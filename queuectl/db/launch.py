"""Becomes a Postgres program that dies with its owner: ``python -I -S launch.py OWNER UID GID PROGRAM ARGUMENT...``.

It runs as a script with the standard library alone. It drops the rights of root (UID and GID are ``-`` without one), and asks the
kernel for SIGINT when the owner ends, which is an orderly "fast" shutdown for Postgres. Then it replaces itself by PROGRAM, so its
pid belongs to the program. A change of the user clears the request, hence the order. A separate process is safe for an owner
with threads; code between fork and exec is not.

The kernel counts the parent *thread*: the owner must start this from a thread that lives as long as the server.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(owner: int, uid: str, gid: str, argv: list[str]) -> None:
    """Start the program. Returns only if the owner has ended already."""
    os.setsid()  # Ctrl-C in the terminal reaches the owner only, which stops this process in order
    os.umask(0o077)
    if uid != "-":
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() == owner:
        os.execv(argv[0], argv)  # noqa: S606 - becoming another program is the purpose


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
