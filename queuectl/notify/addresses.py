"""To which IP addresses a message may go.

A name is resolved once for each connection. Each address of the answer is checked, and a checked address gets the connection, so
that a second answer of the name server cannot lead elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup: TypeAlias = Callable[[str], Sequence[str]]
"""Returns the IP addresses of a name as text. It blocks, and can raise OSError."""

RESOLVE_SECONDS: Final = 5.0
MAX_ADDRESSES: Final = 32  # of one name


class AddressRefused(Exception):
    """A host resolves to an address that messages may not go to, or to none. The message names no address."""


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


LISTABLE: Final = _networks(
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "fc00::/7",
    "::1/128",
)
"""Networks that an administrator can permit: private ones, those of carriers, and the machine itself."""

# The metadata services of clouds, each of which hands out credentials, wherever an administrator's networks may reach.
_METADATA: Final = _networks(
    "169.254.0.0/16",  # AWS, Azure, Google Cloud and others; link-local
    "100.100.100.200/32",  # Alibaba Cloud
    "168.63.129.16/32",  # Azure
    "192.0.0.192/32",  # Oracle Cloud
    "fd00:ec2::/32",  # AWS
    "fd20:ce::254/128",  # Google Cloud
    "fd00:42::42/128",  # Scaleway
)
_NOT_PUBLIC: Final = _networks(
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",  # multicast, reserved, broadcast
    "2001::/23",  # Teredo, ORCHID and other assignments to protocols
    "2001:db8::/32",
    "2002::/16",  # 6to4
    "2620:4f:8000::/48",
    "3fff::/20",
)
"""By IANA's registries of special-purpose addresses; of IPv6, the part within ``2000::/3``, outside which nothing is public."""
_PUBLIC_IPV6: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def permitted(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether messages may go to an address.

    Args:
        address: of the receiver.
        allowed: networks that the administrator permits for this receiver, parts of :data:`LISTABLE`.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        embedded = _embedded(address)
        if embedded is not None:
            return permitted(embedded, allowed)
    if _within(address, _METADATA):
        return False
    if _within(address, allowed):
        return _within(address, LISTABLE)
    public = isinstance(address, ipaddress.IPv4Address) or address in _PUBLIC_IPV6
    return public and not _within(address, _NOT_PUBLIC)


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a packet to this address reaches."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _within(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == each.version and address in each for each in networks)


def listable(network: Network) -> bool:
    """Whether an administrator can permit a network: a public one needs no permission, and others reach no receiver."""
    ends = (network.network_address, network.broadcast_address)
    return any(all(_within(end, (each,)) for end in ends) for each in LISTABLE)


def system_lookup(host: str) -> Sequence[str]:
    """The addresses of a host by the resolver of this machine."""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(answer[4][0]) for answer in answers]


class AddressBook:
    """Resolves and checks hosts. Use it on one event loop.

    A name server that does not answer holds a thread for longer than a message can wait. So each host has one thread at most, and
    all that wait for this host get its answer.
    """

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._resolving: dict[str, asyncio.Future[Sequence[str]]] = {}

    async def checked(self, host: str, allowed: Sequence[Network]) -> tuple[Address, ...]:
        """The addresses of a host.

        Raises:
            AddressRefused: one of them is not permitted, or the host is not resolved.
        """
        try:
            addresses: Sequence[Address] = (ipaddress.ip_address(host),)
        except ValueError:
            addresses = await self._resolved(host)
        if not addresses:
            raise AddressRefused("the host has no address")
        if len(addresses) > MAX_ADDRESSES:
            raise AddressRefused("the host has too many addresses")
        if not all(permitted(address, allowed) for address in addresses):
            raise AddressRefused("the host has an address that is not permitted")
        return tuple(dict.fromkeys(addresses))

    async def _resolved(self, host: str) -> Sequence[Address]:
        answer = self._resolving.get(host) or self._begun(host)
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                texts = await asyncio.shield(answer)
            return [ipaddress.ip_address(text) for text in texts]
        except TimeoutError as error:
            raise AddressRefused("the name server does not answer") from error
        except (OSError, UnicodeError) as error:
            raise AddressRefused("the host is not resolved") from error
        except ValueError as error:
            raise AddressRefused("the name server answers with a faulty address") from error

    def _begun(self, host: str) -> asyncio.Future[Sequence[str]]:
        """Begin to resolve a host in a thread that ends with the process."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()
        # The waiting tasks can have ended when the name server answers.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())

        def finish(texts: Sequence[str], error: Exception | None) -> None:
            self._resolving.pop(host, None)
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(texts)

        def resolve() -> None:
            texts: Sequence[str] = ()
            error: Exception | None = None
            try:
                texts = self._lookup(host)
            except Exception as failure:  # noqa: BLE001 - the waiting task raises it
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(finish, texts, error)

        self._resolving[host] = answer
        threading.Thread(target=resolve, name="notify-resolve", daemon=True).start()
        return answer
