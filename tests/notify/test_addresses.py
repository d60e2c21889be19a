"""To which addresses a message may go."""

# ruff: noqa: RUF001 - digits of other scripts
from __future__ import annotations

import asyncio
import ipaddress
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.notify import addresses
from queuectl.notify.addresses import AddressBook, AddressRefused, listable, permitted
from queuectl.notify.receivers import (
    InvalidReceiver,
    checked_host,
    checked_mail_address,
    checked_url,
)
from tests.notify.parts import Names

EVERYWHERE = addresses.LISTABLE
NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "::169.254.169.254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2002:7f00:1::1",
    "2001:0:7f00:1::1",
    "2001:db8::1",
    "3fff::1",
    "100::1",
    "5f00::1",
    "4000::1",
]
LISTED = [
    "127.0.0.1",
    "127.1.2.3",
    "10.1.2.3",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "100.127.0.1",
    "::1",
    "fc00::1",
    "fd12::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "64:ff9b::7f00:1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700::1",
    "2a00:1450::1",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]


def test_an_address_is_permitted_if_it_is_public_or_private_and_listed() -> None:
    for texts, alone, with_list in (
        (NEVER, False, False),
        (LISTED, False, True),
        (PUBLIC, True, True),
    ):
        for text in texts:
            address = ipaddress.ip_address(text)
            assert permitted(address, ()) is alone, text
            assert permitted(address, EVERYWHERE) is with_list, text


def test_a_list_permits_its_own_networks_only() -> None:
    listed = [ipaddress.ip_network("10.1.0.0/16")]
    assert permitted(ipaddress.ip_address("10.1.2.3"), listed)
    assert not permitted(ipaddress.ip_address("10.2.2.3"), listed)
    assert not permitted(ipaddress.ip_address("::ffff:10.2.2.3"), listed)


def test_an_administrator_can_list_private_networks_only() -> None:
    for text, expected in {
        "10.0.0.0/8": True,
        "10.2.3.0/24": True,
        "127.0.0.1/32": True,
        "fd00::/8": True,
        "0.0.0.0/0": False,
        "8.0.0.0/8": False,
        "169.254.0.0/16": False,
        "10.0.0.0/7": False,
        "::/0": False,
        "fe80::/10": False,
    }.items():
        assert listable(ipaddress.ip_network(text)) is expected, text


@given(st.ip_addresses(v=4), st.booleans())
def test_an_ipv4_address_in_an_ipv6_address_is_judged_as_itself(
    address: ipaddress.IPv4Address, listed: bool
) -> None:
    allowed = EVERYWHERE if listed else ()
    alone = permitted(address, allowed)
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        embedded = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | int(address))
        assert permitted(embedded, allowed) is alone


@given(st.ip_addresses())
def test_what_is_permitted_without_a_list_is_global(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if permitted(address, ()):
        assert address.is_global or (address.version == 6 and address.ipv4_mapped is not None)
        assert not address.is_multicast
        assert not address.is_reserved or address.version == 6


async def test_an_answer_with_one_private_address_is_refused() -> None:
    book = Names([["8.8.8.8", "10.0.0.1"]]).book()
    with pytest.raises(AddressRefused, match="not permitted") as refused:
        await book.checked("hooks.example", ())
    assert "10.0.0.1" not in str(refused.value)


async def test_faulty_empty_and_long_answers_are_refused() -> None:
    for answer, reason in (
        ([], "no address"),
        (["nonsense"], "faulty"),
        ([f"8.8.{n}.8" for n in range(40)], "too many"),
        (["fe80::1%eth0"], "not permitted"),
    ):
        with pytest.raises(AddressRefused, match=reason):
            await Names([answer]).book().checked("hooks.example", EVERYWHERE)


async def test_an_address_is_checked_without_a_name_server() -> None:
    names = Names()
    assert await names.book().checked("8.8.8.8", ()) == (ipaddress.ip_address("8.8.8.8"),)
    with pytest.raises(AddressRefused):
        await names.book().checked("169.254.169.254", EVERYWHERE)
    assert names.asked == 0


async def test_a_name_server_that_hangs_holds_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "RESOLVE_SECONDS", 0.01)
    late, threads = threading.Event(), []

    def hang(_: str) -> Sequence[str]:
        threads.append(threading.current_thread())
        late.wait(10)
        return ["8.8.8.8"]

    book = AddressBook(hang)
    for _ in range(3):
        with pytest.raises(AddressRefused, match="does not answer"):
            await book.checked("hooks.example", ())
    assert len(threads) == 1
    monkeypatch.setattr(addresses, "RESOLVE_SECONDS", 5.0)
    both = [asyncio.create_task(book.checked("hooks.example", ())) for _ in range(2)]
    await asyncio.sleep(0)
    late.set()
    assert await asyncio.gather(*both) == [(ipaddress.ip_address("8.8.8.8"),)] * 2
    assert len(threads) == 1
    await book.checked("hooks.example", ())
    assert len(threads) == 2  # each connection resolves again


async def test_errors_of_the_resolver_are_refusals_and_defects_are_not() -> None:
    def fail(host: str) -> Sequence[str]:
        raise OSError("no such host") if host == "a.example" else RuntimeError("defect")

    with pytest.raises(AddressRefused, match="not resolved"):
        await AddressBook(fail).checked("a.example", ())
    with pytest.raises(RuntimeError, match="defect"):
        await AddressBook(fail).checked("b.example", ())


def test_hosts_that_some_resolvers_read_as_addresses_are_refused() -> None:
    hosts = [
        "2130706433",
        "0x7f.1",
        "127.1",
        "0177.0.0.1",
        "1.2.3.4.5",
        "a.0x7f",
        "１２７.0.0.1",
        "⑯⑨.254.169.254",
        "a..b",
        "-a.b",
        "a-.b",
        "[::1",
        "a_b!",
        "a/b",
        "a@b",
    ]
    for host in [*hosts, "", ".", "a" * 64, "a." * 130, "fe80::1%eth0", "a b", "a\nb", "a\0b"]:
        with pytest.raises(InvalidReceiver):
            checked_host(host)
    for host in (
        "hooks.example",
        "hooks.example.",
        "a",
        "8.8.8.8",
        "::1",
        "xn--bcher-kva.example",
        "a_b.c",
    ):
        assert checked_host(host) == host


def test_addresses_of_webhooks_are_plain_https() -> None:
    refused = [
        r"http://a.example/",
        r"ftp://a.example/",
        r"//a.example/",
        r"a.example",
        r"HTTPS:a.example",
        r"https:///a",
        r"https://user@a.example/",
        r"https://a.example\@b/",
        r"https://a.example#@b/",
        r"https://a.example:0/",
        r"https://a.example:99999/",
        r"https://a.example:x/",
        r"https://[::1",
        r"https://a.example/\ü",
        r"https://a.example/<x>",
        r"https://2130706433/",
        r"https://[fe80::1%25eth0]/",
        r"https://a.example/\x",
    ]
    for url in [
        *refused,
        "https://a.example/ b",
        "https://a.example/\r\nX: y",
        "https://a.example/" + "x" * 3000,
    ]:
        with pytest.raises(InvalidReceiver) as error:
            checked_url(url)
        assert url not in str(error.value)
    for url in ("https://a.example", "https://a.example:8443/x/y?z=1", "https://[2606:4700::1]/x"):
        assert checked_url(url).geturl() == url


def test_a_mail_address_is_one_mailbox() -> None:
    refused = [
        "",
        "a",
        "@a.example",
        "a@",
        "a@b@c",
        "a b@c.example",
        "A <a@b.example>",
        "a@b.example,c@d.example",
        "a@b.example\r\nBcc: x@y.z",
    ]
    for text in [
        *refused,
        '"a"@b.example',
        "a@127.1",
        "ü@b.example",
        "a@b.example\0",
        "a" * 65 + "@b.example",
        "a@[127.0.0.1]",
        "a@b.example\n",
        ".a@b.example",
        "a..b@c.example",
        "a.@b.example",
    ]:
        with pytest.raises(InvalidReceiver):
            checked_mail_address(text)
    assert checked_mail_address("a.b+c@d.example") == "a.b+c@d.example"
