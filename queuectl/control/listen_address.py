"""The addresses at which a process listens."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.errors import BadInput

_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - replaced, not listened on


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Read ``HOST:PORT``, with an IPv6 host in brackets.

        Raises:
            BadInput: the text is invalid; the message quotes it.
        """
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
            raise BadInput(f"{text!r} is not HOST:PORT, for example 127.0.0.1:8000 or [::1]:8000")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def local(self) -> ListenAddress:
        """Where programs of this machine reach it: the loopback address instead of all addresses."""
        return replace(self, host=_LOOPBACK.get(self.host, self.host))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
