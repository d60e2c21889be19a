"""The file with the receivers: QUEUECTL_NOTIFY_FILE, YAML or JSON, under the key ``receivers``.

Credentials are files too. A relative path starts at the folder of the file, so that a volume can hold both.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from queuectl.domain.errors import BadInput
from queuectl.domain.notifications import LARGEST_BACKLOG, LONGEST_AGE, Audience, EventType, Mode
from queuectl.domain.requirements import requirement
from queuectl.notify.addresses import permitted
from queuectl.notify.receivers import (
    Bounds,
    InvalidReceiver,
    Receiver,
    SlackTarget,
    SmtpSecurity,
    SmtpTarget,
    Target,
    WebhookTarget,
    checked_host,
    checked_mail_address,
    checked_url,
    read_secret,
)
from queuectl.objects.documents import read_values
from queuectl.objects.names import is_dns_label

SETTING: Final = "QUEUECTL_NOTIFY_FILE"
KEY: Final = "receivers"
MOST: Final = 100
"""Receivers in the file."""
_LARGEST: Final = 1 << 20  # bytes of the file
_LONGEST_LIST: Final = 1000


def _checked(check: Any) -> BeforeValidator:
    """A validator that lets a text pass through one of the checks of :mod:`queuectl.notify.receivers`."""

    def validate(text: object) -> object:
        if isinstance(text, str):
            check(text)
        return text

    return BeforeValidator(validate)


def _network(text: object) -> object:
    try:
        return ipaddress.ip_network(str(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a network such as 10.0.0.0/8") from None


def _namespace(text: str) -> str:
    if not is_dns_label(text):
        raise ValueError(f"{text!r} is not the name of a namespace")
    return text


def _path(text: str) -> None:
    """A path with NUL or half a surrogate pair raises ValueError where it is used, not OSError."""
    if not text.isprintable():
        raise ValueError("has characters that are not allowed in a path")


_Namespace = Annotated[str, _checked(_namespace)]
_Namespaces = Annotated[list[_Namespace], Field(min_length=1, max_length=_LONGEST_LIST)]
_Networks = Annotated[list[Annotated[Any, BeforeValidator(_network)]], Field(max_length=100)]
_Strict = ConfigDict(
    alias_generator=to_camel, extra="forbid", strict=True, hide_input_in_errors=True
)
_Path = Annotated[Path, Field(strict=False), _checked(_path)]
_Event = Annotated[EventType, Field(strict=False)]
_Mode = Annotated[Mode, Field(strict=False)]


class _Receives(BaseModel):
    """The events that a receiver gets without a subscription."""

    model_config = _Strict

    all: bool = False
    cluster_queues: list[str] = Field([], max_length=_LONGEST_LIST)
    namespaces: list[_Namespace] = Field([], max_length=_LONGEST_LIST)
    events: list[_Event] = []
    mode: _Mode = Mode.IMMEDIATE


class _Common(BaseModel):
    """The fields of each receiver."""

    model_config = _Strict

    name: str
    kind: str
    namespaces: _Namespaces | None = None
    receives: _Receives = _Receives()
    allowed_networks: _Networks = []
    ca_file: _Path | None = None
    digest_seconds: float = Field(0.0, ge=0, allow_inf_nan=False)
    max_age_seconds: float = Field(Bounds().max_age, ge=60, le=LONGEST_AGE)
    max_rows: int = Field(Bounds().max_rows, ge=1, le=LARGEST_BACKLOG)

    def receiver(self, folder: Path) -> Receiver:
        """The receiver. ``folder``: where relative paths start. Raises InvalidReceiver."""
        receives = self.receives
        standing = receives.all or receives.cluster_queues or receives.namespaces
        if receives.events and not standing:
            raise InvalidReceiver("receives: events needs all, clusterQueues or namespaces")
        target = self.target(folder)
        receiver = Receiver(
            audience=Audience(
                name=self.name,
                namespaces=frozenset(self.namespaces) if self.namespaces is not None else None,
                personal=isinstance(target, SmtpTarget),
                everything=receives.all,
                queues=frozenset(receives.cluster_queues),
                own_namespaces=frozenset(receives.namespaces),
                events=frozenset(receives.events),
                mode=receives.mode,
            ),
            target=target,
            allowed_networks=tuple(self.allowed_networks),
            ca_file=folder / self.ca_file if self.ca_file is not None else None,
            digest_seconds=self.digest_seconds,
            bounds=Bounds(self.max_age_seconds, self.max_rows),
        )
        _check_literal(receiver)
        return receiver

    def target(self, folder: Path) -> Target:
        """Where its messages are sent. Raises InvalidReceiver."""
        raise NotImplementedError


class _Webhook(_Common):
    kind: Literal["webhook"]
    url: Annotated[str, _checked(checked_url)]
    hmac_secret_file: _Path

    def target(self, folder: Path) -> WebhookTarget:
        return WebhookTarget(self.url, folder / self.hmac_secret_file)


class _Slack(_Common):
    kind: Literal["slack"]
    url_file: _Path

    def target(self, folder: Path) -> SlackTarget:
        return SlackTarget(folder / self.url_file)


class _Smtp(_Common):
    kind: Literal["smtp"]
    host: Annotated[str, _checked(checked_host)]
    port: int = Field(587, ge=1, le=65_535)
    security: Annotated[SmtpSecurity, Field(strict=False)] = SmtpSecurity.STARTTLS
    sender: Annotated[str, _checked(checked_mail_address)] = Field(alias="from")
    to: Annotated[str, _checked(checked_mail_address)] | None = None
    user_name_file: _Path | None = None
    password_file: _Path | None = None

    def target(self, folder: Path) -> SmtpTarget:
        return SmtpTarget(
            host=self.host,
            sender=self.sender,
            port=self.port,
            security=self.security,
            to=self.to or "",
            user_name_file=folder / self.user_name_file if self.user_name_file else None,
            password_file=folder / self.password_file if self.password_file else None,
        )


_KINDS: Final[dict[str, type[_Common]]] = {"webhook": _Webhook, "slack": _Slack, "smtp": _Smtp}


def read_receivers(file: Path) -> tuple[Receiver, ...]:
    """The receivers of a file, in its order. It blocks. Credentials are not read: they can change at any time.

    Raises:
        BadInput: the first error, with the file, the receiver and the field. It quotes no credential.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
    except OSError as error:
        raise BadInput(f"{SETTING}: {file}: {error.strerror or error}") from None
    if len(content) > _LARGEST:
        raise BadInput(f"{SETTING}: {file}: has more than {_LARGEST} bytes")
    return _receivers(read_values(content, str(file)), file)


def _receivers(documents: Sequence[Any], file: Path) -> tuple[Receiver, ...]:
    single = len(documents) == 1 and isinstance(documents[0], dict)
    body = documents[0] if single else {}
    if unknown := sorted(str(name) for name in body if name != KEY):
        raise BadInput(f"{file}: {unknown[0]}: unknown key; the file has the key {KEY}")
    items = body.get(KEY)
    if not isinstance(items, list):
        raise BadInput(f"{file}: {KEY}: is required, as a list of receivers")
    if len(items) > MOST:
        raise BadInput(f"{file}: {KEY}: has {len(items)} receivers, more than {MOST}")
    receivers: dict[str, Receiver] = {}
    for number, item in enumerate(items):
        place = f"{file}: {KEY}[{number}]"
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            place += f" ({item['name'][:63]})"
        receiver = _read(item, place, file.parent)
        if receiver.name in receivers:
            raise BadInput(f"{place}: name: another receiver has this name")
        receivers[receiver.name] = receiver
    return tuple(receivers.values())


def _read(fields: Any, place: str, folder: Path) -> Receiver:
    kind = fields.get("kind") if isinstance(fields, dict) else None
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if not isinstance(fields, dict):
        raise BadInput(f"{place}: must be an object")
    if model is None:
        raise BadInput(f"{place}: kind: must be {', '.join(_KINDS)}")
    try:
        return model.model_validate(fields).receiver(folder)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        path = ".".join(str(part) for part in problem["loc"])
        raise BadInput(f"{place}: {path}: {requirement(problem)}") from None
    except InvalidReceiver as error:
        raise BadInput(f"{place}: {error}") from None


def _check_literal(receiver: Receiver) -> None:
    """Refuse a host that is an address which no connection would be allowed to. Raises InvalidReceiver."""
    target = receiver.target
    if isinstance(target, WebhookTarget):
        host = urlsplit(target.url).hostname or ""
    elif isinstance(target, SmtpTarget):
        host = target.host
    else:
        return
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return
    if not permitted(address, receiver.allowed_networks):
        raise InvalidReceiver(f"allowedNetworks: no message may go to the address {address}")


# ---- Credentials


def credentials_of(receiver: Receiver) -> tuple[Path, ...]:
    """The files of a receiver, its certificates included."""
    target = receiver.target
    files: tuple[Path | None, ...] = (receiver.ca_file,)
    if isinstance(target, WebhookTarget):
        files += (target.secrets_file,)
    elif isinstance(target, SlackTarget):
        files += (target.url_file,)
    else:
        files += (target.user_name_file, target.password_file)
    return tuple(file for file in files if file is not None)


def unreadable_credentials(receiver: Receiver) -> tuple[str, ...]:
    """A sentence for each file of a receiver that cannot be read. It blocks."""
    wrong: list[str] = []
    for file in credentials_of(receiver):
        try:
            if file == receiver.ca_file:
                file.read_bytes()
            else:
                read_secret(file)
        except OSError as error:
            wrong.append(f"{file}: {error.strerror or error}")
        except InvalidReceiver as error:
            wrong.append(str(error))
    return tuple(wrong)


# ---- Changes of the file


@dataclass(slots=True)
class ReceiverList:
    """The receivers now. A file that is wrong leaves the last right ones in place, at the start none: it ends no process.

    Attributes:
        file: None = no receivers.
        current: the receivers.
        error: why the file as it is now has no effect; empty if it has.
    """

    file: Path | None = None
    current: tuple[Receiver, ...] = ()
    error: str = ""
    _version: tuple[int, int, int] | None = None

    def named(self, name: str) -> Receiver | None:
        """The receiver of this name, or None."""
        return next((each for each in self.current if each.name == name), None)

    def refresh(self) -> bool:
        """Read the file if it was changed since the last time. Returns whether it was. It blocks."""
        if self.file is None:
            return False
        version = _version(self.file)
        if version == self._version:
            return False
        self._version = version
        try:
            self.current, self.error = read_receivers(self.file), ""
        except BadInput as error:
            # JSON can name half a surrogate pair, which no log and no answer can hold.
            self.error = str(error).encode(errors="backslashreplace").decode()
        return True


def _version(file: Path) -> tuple[int, int, int]:
    """Numbers that differ once the file is replaced; zeros if it does not exist."""
    try:
        status = file.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
