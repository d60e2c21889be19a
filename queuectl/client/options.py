"""The options of a client: the address of the server, its certificate, and the source of the token."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from queuectl import kubeconfig
from queuectl.client import credentials
from queuectl.client.credentials import Login
from queuectl.client.errors import InvalidOption
from queuectl.domain.errors import BadInput
from queuectl.kubeconfig import KubeconfigContext

DEFAULT_SERVER: Final = "http://127.0.0.1:8000"
IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder with the token of the pod's ServiceAccount, which the kubelet renews, and with its namespace."""
_VARIABLES: Final = {
    "server": "QUEUECTL_SERVER",
    "token_file": "QUEUECTL_TOKEN_FILE",
    "service_account": "QUEUECTL_AS_SERVICEACCOUNT",
    "ca_file": "QUEUECTL_CA_FILE",
    "tls_server_name": "QUEUECTL_TLS_SERVER_NAME",
}
_TOKEN_SOURCES: Final = {"token", "token_file", "service_account"}


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """The options; None = not set.

    Attributes:
        server: address of the REST API.
        token: the token to send.
        token_file: file with the token to send, instead of the kubeconfig's token. It is read again when it changes.
        service_account: ``namespace/name`` of the ServiceAccount to act as, with a token that the kubeconfig's cluster issues.
        ca_file: CA certificates for the server's certificate; None = those of this machine.
        tls_server_name: name in the server's certificate; None = the host of the address.
        kubeconfig: paths as in ``$KUBECONFIG``.
        context: name of the kubeconfig's context.
        flags: whether messages name options as the command line does.
    """

    server: str = DEFAULT_SERVER
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    service_account: str | None = None
    ca_file: Path | None = None
    tls_server_name: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    flags: bool = False

    @classmethod
    def from_environment(cls, **named: object) -> Self:
        """The options that are given, and for others the variables that the command line reads, as ``QUEUECTL_SERVER``.

        A variable with a source of the token counts only without another source: an option, or an earlier variable.
        """
        options = {name: value for name, value in named.items() if value is not None}
        for name, variable in _VARIABLES.items():
            value = os.environ.get(variable)
            chosen = _TOKEN_SOURCES if name in _TOKEN_SOURCES else {name}
            if value and not options.keys() & chosen:
                options[name] = value
        for name in ("token_file", "ca_file"):
            if name in options:
                options[name] = Path(str(options[name]))
        return cls(**options)  # type: ignore[arg-type]  # the dataclass refuses other names

    def check(self) -> None:
        """Raise InvalidOption for an invalid address, or for two sources of the token."""
        try:
            address = urlsplit(self.server)
            host = address.hostname
        except ValueError:
            host = None
        if not host or address.scheme not in ("http", "https"):
            name, example = self.spelled("server"), DEFAULT_SERVER
            raise InvalidOption(f"{name} {self.server!r}: not an address like {example}")
        sources = {
            "token": self.token,
            "token_file": self.token_file,
            "as_serviceaccount" if self.flags else "service_account": self.service_account,
        }
        chosen = [self.spelled(name) for name, value in sources.items() if value]
        if len(chosen) > 1:
            raise InvalidOption(f"{' and '.join(chosen)} exclude each other")

    def spelled(self, option: str) -> str:
        """The name of an option in messages."""
        return f"--{option.replace('_', '-')}" if self.flags else option

    @property
    def secure(self) -> bool:
        """Whether the address is https."""
        return urlsplit(self.server).scheme == "https"

    @property
    def local(self) -> bool:
        """Whether the server is on this machine."""
        return credentials.loopback(urlsplit(self.server).hostname or "")

    def kubeconfig_context(self) -> KubeconfigContext | None:
        """The kubeconfig's context in use; None without a kubeconfig. Raises InvalidOption."""
        try:
            return kubeconfig.current_context(self.kubeconfig, self.context)
        except BadInput as error:
            raise InvalidOption(str(error)) from error

    def default_namespace(self) -> str:
        """The namespace of an object that is named without one: that of the kubeconfig's context, otherwise that of the pod."""
        context = self.kubeconfig_context()
        if context is not None:
            return context.namespace or "default"
        try:
            return (IN_CLUSTER / "namespace").read_text().strip() or "default"
        except OSError:
            return "default"

    def login(self) -> Login:
        """The token of the user."""
        if self.token is not None:
            return Login(partial(credentials.checked_token, self.token, self.spelled("token")))
        if self.token_file is not None:
            return Login(partial(credentials.from_file, self.token_file), self.token_file)
        return Login(self._of_kubeconfig)

    def _of_kubeconfig(self) -> str:
        context = self.kubeconfig_context()
        if self.service_account:
            from queuectl.client import tokenrequest

            option = self.spelled("as_serviceaccount" if self.flags else "service_account")
            return tokenrequest.made_for(self.service_account, context, option)
        own = IN_CLUSTER / "token"
        if context is None and own.exists():
            return credentials.from_file(own)
        return credentials.of_context(context)
