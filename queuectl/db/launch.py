"""Becomes a Postgres program that dies with its owner: ``python -I -S launch.py OWNER UID GID PROGRAM ARGUMENT...``.

Run as a script with the standard library alone. It drops root's rights (UID and GID are ``-`` where there are none to
drop), asks the kernel for SIGINT when the owner is gone, which Postgres takes as an orderly "fast" shutdown, and then
replaces itself by PROGRAM, so its pid is the program's. Changing the user clears the request, hence the order; and
doing it here, not between fork and exec of the owner, keeps it safe in a process with many threads.

The kernel counts the parent *thread*: the owner must start this from a thread that lives as long as the server.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(owner: int, uid: str, gid: str, argv: list[str]) -> None:
    """Do what the module says; returns only when the owner is already gone."""
    os.setsid()  # a Ctrl-C at the owner's terminal is for the owner, who then stops us in order
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
