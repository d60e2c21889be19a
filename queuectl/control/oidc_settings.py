"""Settings of the sign-in through an OpenID Connect issuer: environment variables ``QUEUECTL_OIDC__<FIELD>``."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from queuectl.domain.words import comma_separated

NO_PREFIX: Final = "-"
RESERVED: Final = "system:"
"""Beginning of the names of users and groups that Kubernetes keeps for itself."""


class OidcSettings(BaseModel):
    """Sign-in through an OpenID Connect issuer (docs/how-to/sign-in.md). Without an issuer, users do not sign in."""

    model_config = ConfigDict(extra="forbid")

    issuer: str = Field(
        "",
        description="URL of the OpenID Connect issuer, as in the claim iss; unset = only tokens of the cluster",
    )
    client_id: str = Field(
        "", validate_default=True, description="client ID of queuectl at the issuer"
    )
    client_secret_file: Path | None = Field(
        None,
        description="file with the client secret, read for each sign-in; unset = public client",
    )
    dashboard_url: str = Field(
        "",
        description="URL of the dashboard's host, for example https://queuectl.example.org; unset = no sign-in through the issuer",
    )
    audiences: str = Field(
        "",
        description="audiences, separated by commas, of the ID tokens that the REST API accepts; unset = the client ID",
    )
    scopes: str = Field(
        "openid,profile,email",
        description="scopes, separated by commas, that a sign-in in the browser asks for",
    )
    username_claim: str = Field("sub", min_length=1, description="claim that holds the user name")
    username_prefix: str = Field(
        "oidc:", description="prefix of each user name; - = no prefix", min_length=1
    )
    groups_claim: str = Field("groups", min_length=1, description="claim that holds the groups")
    groups_prefix: str = Field(
        "oidc:", description="prefix of each group; - = no prefix", min_length=1
    )
    ca_file: Path | None = Field(
        None,
        description="PEM file with the certificate authorities of the issuer; unset = those of the system",
    )

    @field_validator("issuer")
    @classmethod
    def _issuer(cls, url: str) -> str:
        return _secure(url) if url else url

    @field_validator("dashboard_url")
    @classmethod
    def _dashboard_url(cls, url: str) -> str:
        url = url.rstrip("/")
        if url and urlsplit(_secure(url)).path:
            raise ValueError(f"{url!r} has a path; the dashboard is at /ui of its host")
        return url

    @field_validator("client_id")
    @classmethod
    def _client_id(cls, client_id: str, validation: ValidationInfo) -> str:
        if validation.data.get("issuer") and not client_id:
            raise ValueError("QUEUECTL_OIDC__ISSUER needs a client ID")
        return client_id

    @field_validator("username_prefix", "groups_prefix")
    @classmethod
    def _prefix(cls, prefix: str) -> str:
        if prefix.startswith(RESERVED):
            raise ValueError(f"{prefix!r} begins with {RESERVED}, which Kubernetes reserves")
        return prefix

    @property
    def accepted_audiences(self) -> frozenset[str]:
        """Audiences of the ID tokens that the REST API accepts."""
        return frozenset(comma_separated(self.audiences) or [self.client_id])

    @property
    def scope(self) -> str:
        """The scopes as a login asks for them; ``openid`` is always one of them."""
        return " ".join(dict.fromkeys(["openid", *comma_separated(self.scopes)]))

    @property
    def discovery_url(self) -> str:
        """Where the issuer describes itself (OpenID Connect Discovery 1.0, section 4)."""
        return f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"


def encrypted_or_local(url: str) -> bool:
    """Whether a request to this URL can be read by no other machine: TLS, or a loopback address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        return bool(host) and (
            parts.scheme == "https" or (parts.scheme == "http" and _loopback(host))
        )
    except ValueError:
        return False


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _secure(url: str) -> str:
    if not encrypted_or_local(url):
        raise ValueError(f"{url!r} is not an https:// URL; http:// is for loopback addresses only")
    parts = urlsplit(url)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{url!r} has a query, a fragment or a user")
    return url
