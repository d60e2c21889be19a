"""Settings of the controller: environment variables ``QUEUECTL_<FIELD>``, nested with ``__``.

The description of each field states its effect and its unit. docs/reference/settings.md lists all of them. pydantic checks the values
of the names that it knows. This module checks the names, so that a misspelled setting is an error.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from queuectl.control.listen_address import ListenAddress
from queuectl.control.oidc_settings import OidcSettings
from queuectl.domain.errors import BadInput
from queuectl.domain.links import MOST_LINKS, LinkTemplate
from queuectl.domain.requirements import requirement
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.words import comma_separated
from queuectl.mig.settings import MigSettings
from queuectl.objects.configuration.owners import Owner
from queuectl.objects.kinds import KINDS, JobKinds, with_declared
from queuectl.objects.kinds.declared import read_kinds
from queuectl.objects.names import is_dns_label

# ---- The controller


class LinkSetting(BaseModel):
    """A link of the dashboard to another system (docs/how-to/dashboard.md)."""

    model_config = ConfigDict(extra="forbid")

    name: str
    template: str


class SolverSettings(BaseModel):
    """Limits of the planner (domain.snapshot.SolverLimits)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    deterministic_time: float = Field(
        0.25, gt=0, description="budget of the first solve, in CP-SAT's deterministic time"
    )
    wall_seconds: float = Field(
        10.0,
        gt=0,
        description="longest time of one solve, in seconds; a plan with a longer one is discarded",
    )
    window: int = Field(1000, ge=1, description="number of pending gangs that one cycle considers")
    lease_seconds: float = Field(
        600.0,
        gt=0,
        description="reservations: how long freed capacity is reserved for its preemptor after the notice, in seconds",
    )

    @property
    def limits(self) -> SolverLimits:
        """The limits in the form of a snapshot."""
        return SolverLimits(
            deterministic_time=self.deterministic_time,
            wall_seconds=self.wall_seconds,
            window=self.window,
            lease_seconds=self.lease_seconds,
        )


class MetricNames(BaseModel):
    """Names of the exporters' metrics; unset = the vendor's names."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    busy: str | None = Field(
        None, description="metric: fraction of time in which the engines of a GPU were busy"
    )
    busy_full: float | None = Field(
        None, gt=0, description="largest value of that metric: 1 or 100"
    )
    coarse: str | None = Field(
        None, description="metric that is used where the first one is missing"
    )
    coarse_full: float | None = Field(None, gt=0, description="largest value of that metric")
    tensor: str | None = Field(None, description="metric: use of tensor pipes, 0 to 1")
    memory_busy: str | None = Field(None, description="metric: use of the memory interface")
    memory_busy_full: float | None = Field(None, gt=0, description="largest value of that metric")
    memory_used: str | None = Field(None, description="metric: GPU memory in use")
    memory_free: str | None = Field(None, description="metric: free GPU memory, in the same unit")
    device: str | None = Field(
        None,
        description="labels, separated by commas, that together identify one GPU or MIG instance",
    )


class UtilizationSettings(BaseModel):
    """How the GPU use of gangs is measured (docs/how-to/utilization.md)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    exporters: str = Field(
        "",
        description="URLs of GPU exporters, separated by commas, for clusters without Prometheus; dns+http://… means all addresses of a host",
    )
    vendor: str = Field(
        "nvidia",
        pattern=r"^(nvidia|amd|intel)(,(nvidia|amd|intel))*$",
        description="vendors of the metrics, separated by commas: nvidia, amd, intel",
    )
    amd_prefix: str = Field(
        "",
        pattern=r"^[a-zA-Z_]*$",
        description="prefix of the metrics of AMD's exporter (MetricsFieldPrefix), for example amd_",
    )
    evaluation_seconds: float = Field(
        60.0, gt=0, description="time between two evaluations, in seconds"
    )
    scrape_seconds: float = Field(
        30.0, gt=0, description="scrape interval of Prometheus, in seconds; not used for exporters"
    )
    timeout_seconds: float = Field(30.0, gt=0, description="timeout of one evaluation, in seconds")
    labels: Literal["auto", "pod", "exported_pod"] = Field(
        "auto",
        description="label that names the pod in Prometheus: pod or exported_pod; auto = the one that names pods of the cluster",
    )
    trusted_jobs: str = Field(
        "",
        description="names of trusted scrape jobs, separated by commas; * matches any characters; unset = those of the vendor's installers",
    )
    trusted_namespaces: str = Field(
        "",
        description="namespaces of trusted exporters, separated by commas, if Prometheus renames labels; unset = any",
    )
    series_labels: str = Field(
        "",
        description="labels of the series of this cluster, as label=value, separated by commas, if Prometheus has several clusters; not used for exporters; unset = any",
    )
    recording_rules: Literal["auto", "on", "off"] = Field(
        "auto",
        description="whether to use the recording rules of deploy/chart/rules/rules.yaml: on or off; auto = if they are loaded",
    )
    trust_slices: bool = Field(
        False,
        description="the exporter measures each pod of a time-sliced GPU (--kubernetes-virtual-gpus)",
    )
    container_jobs: str = Field(
        "",
        description="names of the scrape jobs that have the CPU and the memory of containers (cAdvisor), separated by commas; * matches any characters; unset = kubelet, cadvisor, kubernetes-cadvisor, kubernetes-nodes-cadvisor",
    )
    retention_seconds: float = Field(
        7200.0,
        gt=0,
        description="how long samples of exporters are kept in memory, in seconds; this is the longest window",
    )
    token_file: Path | None = Field(
        None, description="file with the bearer token for Prometheus, read for each request"
    )
    ca_file: Path | None = Field(None, description="file with certificates to trust for Prometheus")
    names: MetricNames = MetricNames()

    @property
    def vendors(self) -> tuple[str, ...]:
        """The vendors of the metrics, each once."""
        return tuple(dict.fromkeys(self.vendor.split(",")))

    @property
    def fresh_seconds(self) -> float:
        """The age, in seconds, after which an evaluation no longer counts: twice the longest time until the next one."""
        return 2.0 * (self.evaluation_seconds + self.timeout_seconds)

    @property
    def sample_seconds(self) -> float:
        """The time between two samples of one GPU, in seconds, for either source."""
        return self.evaluation_seconds if self.exporters else self.scrape_seconds


class Settings(BaseSettings):
    """All settings of ``queuectl serve``."""

    model_config = SettingsConfigDict(
        env_prefix="QUEUECTL_",
        env_nested_delimiter="__",
        extra="forbid",
        allow_inf_nan=False,
    )

    database_url: str | None = Field(
        None,
        description="postgresql://… URL of a server of version 15 or later; unset = embedded PostgreSQL",
    )
    api_database_url: str | None = Field(
        None,
        description="URL of the same database with the role of the API; unset = QUEUECTL_DATABASE_URL",
    )
    kubeconfig: Path | None = Field(
        None, description="path of a kubeconfig; unset = the service account of the pod"
    )
    kinds_file: Path | None = Field(
        None,
        description="YAML file that declares further job kinds, under the key jobKinds; unset = none",
    )
    notify_file: Path | None = Field(
        None,
        description="YAML file with the receivers of notifications, under the key receivers; a changed file is read without a restart; unset = none",
    )
    shadow: bool = Field(
        False,
        description="true = shadow mode: queuectl observes the cluster, starts nothing, and writes nothing but its Lease",
    )
    configuration_owner: Owner = Field(
        default_factory=lambda before: Owner.KUEUE if before.get("shadow") else Owner.DATABASE,
        description="owner of queues, flavors and related objects: database = REST, CLI and dashboard write them; kueue = objects of kueue.x-k8s.io; kubernetes = objects of queuectl.dev",
    )
    configuration_settle_seconds: float = Field(
        5.0,
        ge=0,
        le=60,
        description="time without an edit of such an object before an edit that takes something from running gangs takes effect, in seconds; it waits at most 60 s",
    )
    propose_for: str = Field(
        "",
        description="namespaces, separated by commas, for which the leader proposes queues for the nodes at the first start, as queuectl init does; needs the configuration owner database; unset = none",
    )

    namespace: str = Field("queuectl-system", description="namespace of the Lease")
    holder: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        min_length=1,
        description="name of this process in the Lease, unique",
    )
    listen: str = Field("127.0.0.1:8000", description="address of the REST API and the dashboard")
    auth: Literal["kubernetes", "none"] | None = Field(
        None,
        description="kubernetes = tokens and RBAC of the cluster; none = no authentication, only on loopback; unset = none on loopback, otherwise kubernetes",
    )
    oidc: OidcSettings = OidcSettings()
    tls_cert_file: Path | None = Field(
        None,
        description="PEM file with the certificate and its chain; a renewed file is read without a restart",
    )
    tls_key_file: Path | None = Field(None, description="PEM file with the key")
    tls_secret: str = Field(
        "",
        description="name of a Secret in which queuectl keeps a certificate that it creates and renews; it writes the two files itself; unset = an administrator provides them",
    )
    tls_authority: str = Field(
        "",
        description="name of a ConfigMap in which clients read the certificate authority of that certificate",
    )
    tls_hosts: str = Field(
        "",
        description="DNS names and IP addresses, separated by commas, for that certificate",
    )
    tls: Literal["on", "off"] = Field(
        "on", description="off = an ingress in front of queuectl terminates TLS"
    )
    links: tuple[LinkSetting, ...] | None = Field(
        None,
        max_length=MOST_LINKS,
        description='links of the dashboard to other systems, as a JSON list of {"name": …, "template": …}; a template is a URL with fields such as {namespace} and {name}; unset = none',
    )
    requests_per_second: float = Field(
        50.0, gt=0, description="rate limit of one caller at the REST API, in requests per second"
    )
    request_burst: int = Field(
        500, ge=1, description="number of requests that one caller can send at once"
    )
    connections: int = Field(
        1000,
        ge=10,
        description="number of open connections to the REST API; fewer if the limit of open files is lower",
    )
    connections_per_address: int = Field(
        200,
        ge=1,
        description="number of open connections from one address whose callers are not known; trusted proxies have no such limit",
    )
    connections_per_caller: int = Field(
        100, ge=1, description="number of open connections of one caller"
    )
    streams: int = Field(200, ge=1, description="number of open event streams")
    streams_per_caller: int = Field(
        10, ge=1, description="number of open event streams of one caller"
    )
    pod_logs: bool = Field(
        False,
        description="pages show the logs of pods to viewers that may get pods/log; needs deploy/optional/pod-logs.yaml",
    )
    log_streams: int = Field(50, ge=1, description="number of logs that are open on pages")
    log_streams_per_caller: int = Field(
        3, ge=1, description="number of logs that one caller has open on pages"
    )
    trusted_proxies: str = Field(
        "",
        description="addresses and networks, separated by commas, of proxies whose X-Forwarded-For header is trusted",
    )
    audit_days: float = Field(
        400.0, gt=0, description="how long entries of the audit log are kept, in days"
    )
    documentation_url: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        max_length=2048,
        description="http or https URL of your documentation, to which each page of the dashboard links; unset = no link",
    )
    metrics_listen: str = Field("127.0.0.1:8080", description="address of /metrics")
    health_listen: str = Field(
        "127.0.0.1:8081",
        description="address of /healthz and /readyz, which a separate thread answers",
    )
    visibility_listen: str = Field(
        "",
        description="address of the aggregated API that serves workloads to kubectl; unset = off",
    )
    visibility_secret: str = Field(
        "queuectl-visibility",
        description="name of a Secret in which queuectl keeps the certificate of that API",
    )
    visibility_hosts: str = Field(
        "queuectl-visibility.queuectl-system.svc",
        description="DNS names and IP addresses, separated by commas, for that certificate",
    )

    otlp_endpoint: str = Field(
        "",
        pattern="^(https?://[^/]+(/.*)?)?$",
        description="base URL of an OpenTelemetry collector (OTLP over HTTP) that gets a trace of each attempt of a gang; unset = none",
    )
    shadow_seconds: float = Field(
        60.0, ge=5, description="time between two observations in shadow mode, in seconds"
    )
    shadow_days: float = Field(
        60.0, gt=0, description="how long the records of shadow mode are kept, in days"
    )
    shadow_simulation_seconds: float = Field(
        3600.0,
        ge=5,
        description="time between two simulated reports of shadow mode, in seconds; the first one needs records of at least this time",
    )

    debounce_seconds: float = Field(
        0.02,
        ge=0,
        description="time between the first change and the cycle, in seconds, to collect further changes",
    )
    # A larger value shortens waits and makes more, smaller cycles. Compared with 0.4 in bench_replay, 0.7 used 5% more CPU
    # and large gangs waited 0.2 s less; 0.25 used 5% less CPU and they waited 0.2 s more. With 0.4, a machine with two cores
    # has enough CPU left for the API server.
    planning_share: float = Field(
        0.4,
        gt=0,
        le=1,
        description="largest fraction of one core for planning cycles, and the same again for diagnoses, what-if questions and previews",
    )
    defragment_seconds: float = Field(
        30.0,
        ge=0,
        description="shortest time between two searches for migrations, and for nodes whose MIG configuration to change, in seconds",
    )
    account_seconds: float = Field(
        60.0, gt=0, description="time between two updates of the usage ledger, in seconds"
    )
    in_flight: int = Field(32, ge=1, description="number of concurrent writes to the API server")
    events_per_second: float = Field(
        20.0, gt=0, description="status annotations and Events per second"
    )
    reason_delay_seconds: float = Field(
        2.0,
        ge=0,
        description="how long a pending reason must last before it is published, in seconds",
    )

    lease_duration: float = Field(
        15.0, gt=0, le=3600, description="how long the Lease is valid without a renewal, in seconds"
    )
    lease_renew: float = Field(
        3.0,
        gt=0,
        description="time between renewals, in seconds; less than a third of the duration",
    )

    unschedulable_seconds: float = Field(
        30.0,
        gt=0,
        description="time after which a start fails if kube-scheduler refuses a pinned pod, or pods of an earlier attempt remain, in seconds",
    )
    force_delete_seconds: float | None = Field(
        None,
        gt=0,
        description="time after which Terminating pods of evicted gangs on dead nodes are deleted, in seconds; needs deploy/optional/force-delete.yaml; unset = never",
    )
    shutdown_seconds: float = Field(
        10.0, gt=0, description="time for unfinished writes at SIGTERM, in seconds"
    )

    prometheus_url: str | None = Field(
        None, description="URL of a Prometheus with GPU metrics; unset = utilization is unknown"
    )
    utilization: UtilizationSettings = UtilizationSettings()
    solver: SolverSettings = SolverSettings()
    mig: MigSettings = MigSettings()

    @field_validator("propose_for")
    @classmethod
    def _proposed_to_the_database(cls, text: str, validation: ValidationInfo) -> str:
        names = comma_separated(text)
        owner = validation.data.get("configuration_owner", Owner.DATABASE)
        if names and owner is not Owner.DATABASE:
            raise ValueError(
                f"objects of the cluster own the configuration (QUEUECTL_CONFIGURATION_OWNER is {owner}): apply the output of queuectl init to the cluster instead"
            )
        if wrong := [name for name in names if not is_dns_label(name)]:
            raise ValueError(f"{wrong[0]!r} is not the name of a namespace")
        return text

    @field_validator("links")
    @classmethod
    def _links(cls, links: tuple[LinkSetting, ...] | None) -> tuple[LinkSetting, ...] | None:
        for link in links or ():
            LinkTemplate.parse(link.name, link.template)
        return links

    @field_validator("listen", "metrics_listen", "health_listen", "visibility_listen")
    @classmethod
    def _address(cls, text: str, validation: ValidationInfo) -> str:
        if text or validation.field_name != "visibility_listen":
            try:
                ListenAddress.parse(text)
            except BadInput as error:
                raise ValueError(str(error)) from error
        return text

    @field_validator("lease_renew")
    @classmethod
    def _time_for_two_renewals(cls, renew: float, validation: ValidationInfo) -> float:
        """One failed renewal must not end the leadership."""
        duration = validation.data.get("lease_duration", math.inf)
        if 3 * renew >= duration:
            raise ValueError(
                f"{renew:g} s is not less than a third of QUEUECTL_LEASE_DURATION, {duration:g} s"
            )
        return renew

    @property
    def link_templates(self) -> tuple[LinkTemplate, ...]:
        """The links of the dashboard to other systems."""
        return tuple(LinkTemplate.parse(link.name, link.template) for link in self.links or ())

    @property
    def proposed_namespaces(self) -> tuple[str, ...]:
        """The namespaces for which queues are proposed."""
        return tuple(dict.fromkeys(comma_separated(self.propose_for)))


# ---- Reading them


class InvalidSettings(BadInput):
    """The environment has wrong settings.

    Attributes:
        sentences: one for each wrong variable, which it names.
    """

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = tuple(sentences)
        super().__init__("; ".join(self.sentences))


def read_settings(*, shadow: bool = False) -> Settings:
    """The settings of the environment of this process, or of shadow mode in any case. Raises InvalidSettings."""
    if unknown := unknown_variables(os.environ):
        raise InvalidSettings(unknown)
    try:
        return Settings(shadow=True) if shadow else Settings()
    except ValidationError as error:
        raise InvalidSettings(
            f"{PREFIX}{'__'.join(map(str, problem['loc'])).upper()}: {requirement(problem)}"
            for problem in error.errors()
            if problem["type"] != "default_factory_not_called"  # a result of another error
        ) from error
    except SettingsError as error:
        [field] = re.findall('field "(.+?)"', str(error))
        text = getattr(error.__cause__, "doc", "")
        raise InvalidSettings([f"{PREFIX}{field.upper()}: {text!r} is not JSON"]) from error


def job_kinds(settings: Settings) -> JobKinds:
    """The job kinds, with those that ``QUEUECTL_KINDS_FILE`` declares.

    Raises:
        BadInput: a declaration is wrong; the message names kind and field.
    """
    file = settings.kinds_file
    if file is None:
        return KINDS
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInput(f"QUEUECTL_KINDS_FILE: {file}: {error.strerror or error}") from None
    return with_declared(read_kinds(content, str(file)))


# ---- Names of environment variables

PREFIX: Final = "QUEUECTL_"
PLAIN_VARIABLES: Final = MappingProxyType(
    {
        "QUEUECTL_API_DATABASE_PASSWORD_FILE": "queuectl.db.engine",
        "QUEUECTL_DATABASE_PASSWORD_FILE": "queuectl.db.engine",
        "QUEUECTL_DATABASE_DIRECT_URL": "queuectl.db.engine",
        "QUEUECTL_DATABASE_PGBOUNCER": "queuectl.db.engine",
        "QUEUECTL_PG_BIN": "queuectl.db.embedded",
        "QUEUECTL_CACHE": "queuectl.localcluster.build",
        "QUEUECTL_AUDIT_LOGS": "queuectl.localcluster.layout",
        "QUEUECTL_SERVER": "queuectl.cli.client",
        "QUEUECTL_TOKEN_FILE": "queuectl.client.options",
        "QUEUECTL_AS_SERVICEACCOUNT": "queuectl.client.options",
        "QUEUECTL_CA_FILE": "queuectl.client.options",
        "QUEUECTL_TLS_SERVER_NAME": "queuectl.client.options",
    }
)
"""Variables that are not Settings, and the module that reads each."""

# The variables that kubelet sets for each Service of the namespace: prefix, name of the Service, and for example PORT_8080_TCP_ADDR.
_SERVICE: Final = "_SERVICE_HOST"
_LINK: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


def settings_names() -> frozenset[str]:
    """All variables that :class:`Settings` reads. A nested setting can also be one JSON value."""
    return frozenset(PREFIX + name.upper() for name in _names(Settings))


def _names(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (f"{name}__{inner}" for inner in _names(kind))


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable with the prefix that no code reads, by name."""
    settings = settings_names()
    services = {name.removesuffix(_SERVICE) for name in environ if name.endswith(_SERVICE)}
    return [
        _sentence(name, settings | PLAIN_VARIABLES.keys())
        for name in sorted(environ)
        if name.upper().startswith(PREFIX)
        and name.upper() not in settings  # pydantic ignores the case
        and name not in PLAIN_VARIABLES
        and not _is_link(name, services)
    ]


def _is_link(name: str, services: set[str]) -> bool:
    return any(
        name.startswith(service) and _LINK.fullmatch(name, len(service)) for service in services
    )


def _sentence(name: str, variables: Iterable[str]) -> str:
    rests = sorted(variable.removeprefix(PREFIX) for variable in variables)
    close = get_close_matches(name.upper().removeprefix(PREFIX), rests, n=3, cutoff=0.7)
    meant = " or ".join(PREFIX + rest for rest in close)
    hint = f"did you mean {meant}?" if meant else "see docs/reference/settings.md"
    return f"{name}: unknown variable; {hint}"
