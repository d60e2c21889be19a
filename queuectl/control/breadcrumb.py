"""The unit that a child process handles, in memory that the parent reads after the end of the child."""

from __future__ import annotations

import mmap
import os
from typing import Final

from queuectl.domain.containment import Boundary, Suspect

_BYTES: Final = 4096
_COUNT: Final = 8  # bytes of the counter, and of the length
_SEPARATOR: Final = "\0"


class Breadcrumb:
    """In a file without a name. Only memory is written, so a unit costs about a microsecond."""

    def __init__(self, descriptor: int | None = None) -> None:
        """``descriptor``: of the file; None makes one."""
        self.descriptor = descriptor if descriptor is not None else os.memfd_create("queuectl", 0)
        os.ftruncate(self.descriptor, _BYTES)
        self._memory = mmap.mmap(self.descriptor, _BYTES)
        self._count = 0

    def entered(self, boundary: Boundary, key: str, ref: str, namespace: str) -> None:
        """Note the unit that is handled from now on."""
        text = _SEPARATOR.join((boundary, key, ref, namespace)).encode()[: _BYTES - 2 * _COUNT]
        memory, end = self._memory, 2 * _COUNT + len(text)
        memory[2 * _COUNT : end] = text
        memory[_COUNT : 2 * _COUNT] = len(text).to_bytes(_COUNT)
        self._count += 1
        memory[:_COUNT] = self._count.to_bytes(_COUNT)

    @property
    def count(self) -> int:
        """How many units were noted."""
        return int.from_bytes(self._memory[:_COUNT])

    def suspect(self, how: str) -> Suspect | None:
        """The last unit, as one that ended its process; None if that was at no unit. ``how``: the process ended."""
        end = 2 * _COUNT + int.from_bytes(self._memory[_COUNT : 2 * _COUNT])
        parts = self._memory[2 * _COUNT : end].decode(errors="replace").split(_SEPARATOR)
        if len(parts) != 4 or parts[0] == Boundary.TASK:
            return None
        boundary, key, ref, namespace = parts
        return Suspect(Boundary(boundary), key, ref or key, namespace, how)

    def close(self) -> None:
        """Free the memory."""
        self._memory.close()
        os.close(self.descriptor)
