"""A control plane with authentication, and users with browsers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, sync_playwright

from queuectl.demo.api_connection import ApiConnection
from queuectl.localcluster import LocalCluster, NodeSpec
from tests.oidc.certified import PUBLIC, provider
from tests.support.node import NoPackages
from tests.support.people import Document, account, binding, namespace, token_of
from tests.support.tls import write_certificate
from tests.system.installation import SECONDS, Installation, leading_controller
from tests.web.browser import NoBrowser, launching

PEOPLE = "people"
"""The namespace of all ServiceAccounts; they have no rights in it."""


@dataclass(frozen=True)
class Person:
    """A user of the cluster. ``user``: the name in the API server."""

    name: str
    token: str = field(repr=False)

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{PEOPLE}:{self.name}"


def person(cluster: LocalCluster, name: str, role: str, where: str = "") -> Person:
    """A user with one role, in a namespace or everywhere."""

    @dataclass(frozen=True)
    class Plane:
        cluster: LocalCluster

    who = account(PEOPLE, name)
    documents: list[Document] = [namespace(PEOPLE), who, binding(name, role, who, where)]
    cluster.client.apply(*documents)
    return Person(name, asyncio.run(token_of(Plane(cluster), who)))


@contextmanager
def secured_installation(
    nodes: NodeSpec, folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[Installation]:
    """queuectl as deploy/ runs it: with TLS and authentication. The tests' own REST client is a platform administrator's."""
    files = write_certificate(folder, "queuectl")
    secured = {
        **(settings or {}),
        "QUEUECTL_AUTH": "kubernetes",
        "QUEUECTL_TLS_CERT_FILE": str(files.chain),
        "QUEUECTL_TLS_KEY_FILE": str(files.key),
    }
    with leading_controller(nodes, secured) as (cluster, controller):
        controller.api = controller.api.replace("http:", "https:")
        owner = person(cluster, "owner", "queuectl-platform-admin")
        trusted = ssl.create_default_context(cafile=str(files.chain))
        headers = {"Authorization": f"Bearer {owner.token}"}
        with ApiConnection(controller.api, headers=headers, verify=trusted) as rest:
            yield Installation(cluster, controller, rest)


@contextmanager
def issuer_for(*callbacks: str) -> Iterator[str]:
    """The URL of a certified OpenID Connect provider; empty if it cannot be installed here."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(provider(callbacks))
        except NoPackages:
            url = ""
        yield url


def issued_by(issuer: str) -> dict[str, str]:
    """Settings for ID tokens of this issuer; none if it is empty."""
    if not issuer:
        return {}
    return {
        "QUEUECTL_OIDC__ISSUER": issuer,
        "QUEUECTL_OIDC__CLIENT_ID": PUBLIC,
        "QUEUECTL_OIDC__SCOPES": "email,groups",
    }


@contextmanager
def chromium() -> Iterator[Browser]:
    """One that runs; the test is skipped without one."""
    try:
        launch = launching()
    except NoBrowser as error:
        pytest.skip(str(error))
    with sync_playwright() as tools:
        started = tools.chromium.launch(**launch)
        try:
            yield started
        finally:
            started.close()


@dataclass
class DashboardUsers:
    """Users of the dashboard at ``address``, and the errors in their browsers."""

    browser: Browser
    address: str
    errors: list[str] = field(default_factory=list)

    def signed_out_page(self) -> Page:
        """A page without a session."""
        context = self.browser.new_context(base_url=self.address, ignore_https_errors=True)
        context.set_default_timeout(1000 * SECONDS)
        page = context.new_page()
        page.on("pageerror", self._erred)
        page.on("console", self._said)
        return page

    def visit(self, who: Person, path: str = "/ui/mine") -> Page:
        """The page after a user has signed in."""
        page = self.signed_out_page()
        page.goto(path)
        sign_in(page, who.token)
        page.wait_for_url(f"**{path}")
        return page

    def _erred(self, error: Error) -> None:
        self.errors.append(str(error))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url')})")


def sign_in(page: Page, token: str) -> None:
    """Paste a token into the sign-in form."""
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
