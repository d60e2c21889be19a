"""Settings of the controller: environment variables ``QUEUECTL_<FIELD>``, nested with ``__``.

Every field says what it rules and in which unit. There is no setting that nothing reads.
"""

from __future__ import annotations

import math
import os
import socket
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from queuectl.domain.snapshot import SolverLimits


class SolverSettings(BaseModel):
    """Limits of the planner (domain.snapshot.SolverLimits)."""

    model_config = ConfigDict(extra="forbid")

    deterministic_time: float = Field(
        0.25, gt=0, description="first budget of one solve, CP-SAT's deterministic time"
    )
    wall_seconds: float = Field(10.0, gt=0, description="safety net; a plan cut by it is discarded")
    window: int = Field(1000, ge=1, description="pending gangs looked at in one cycle")
    lease_seconds: float = Field(
        600.0, gt=0, description="how long freed capacity is held for its preemptor, after notice"
    )

    @property
    def limits(self) -> SolverLimits:
        """The same, as snapshots carry them."""
        return SolverLimits(
            deterministic_time=self.deterministic_time,
            wall_seconds=self.wall_seconds,
            window=self.window,
            lease_seconds=self.lease_seconds,
        )


class MetricNames(BaseModel):
    """Where the exporters' metrics have other names than the vendor's own; unset = the vendor's."""

    model_config = ConfigDict(extra="forbid")

    busy: str | None = Field(None, description="how much of the time a GPU's engines were busy")
    busy_full: float | None = Field(None, gt=0, description="its largest value: 1 or 100")
    coarse: str | None = Field(None, description="what stands in for it where it is not exported")
    coarse_full: float | None = Field(None, gt=0, description="its largest value")
    tensor: str | None = Field(None, description="use of tensor pipes, 0 to 1")
    memory_busy: str | None = Field(None, description="use of the memory interface")
    memory_busy_full: float | None = Field(None, gt=0, description="its largest value")
    memory_used: str | None = Field(None, description="GPU memory in use")
    memory_free: str | None = Field(None, description="GPU memory not in use, in the same unit")
    device: str | None = Field(
        None,
        description="labels, by commas, that together tell one GPU or instance from all others",
    )


class UtilizationSettings(BaseModel):
    """How what gangs do with their GPUs is measured (docs/how-to/utilization.md)."""

    model_config = ConfigDict(extra="forbid")

    exporters: str = Field(
        "",
        description="URLs, by commas, of GPU exporters to scrape where there is no Prometheus; dns+http://…: of all addresses of a host",
    )
    vendor: Literal["nvidia", "amd"] = Field("nvidia", description="whose metrics they are")
    look_seconds: float = Field(60.0, gt=0, description="between looks")
    scrape_seconds: float = Field(
        30.0, gt=0, description="between samples of one GPU in Prometheus; exporters: every look"
    )
    patience_seconds: float = Field(30.0, gt=0, description="after which a look is given up")
    labels: Literal["auto", "pod", "exported_pod"] = Field(
        "auto", description="label that names the pod in Prometheus; auto = whichever fits"
    )
    trusted_jobs: str = Field(
        "",
        description="scrape jobs, by commas, whose series count; * = any characters; unset = those of the vendor's installers",
    )
    trusted_namespaces: str = Field(
        "",
        description="namespaces, by commas, of exporters that count, where Prometheus renames labels; unset = any",
    )
    recording_rules: Literal["auto", "on", "off"] = Field(
        "auto", description="use what deploy/prometheus/rules.yaml records; auto = if it is there"
    )
    trust_slices: bool = Field(
        False,
        description="the exporter measures each pod of a time-sliced GPU (--kubernetes-virtual-gpus)",
    )
    keep_seconds: float = Field(
        7200.0, gt=0, description="samples of exporters kept in memory; no longer window is known"
    )
    token_file: Path | None = Field(None, description="bearer token for Prometheus, read each time")
    ca_file: Path | None = Field(None, description="certificates to trust for Prometheus")
    names: MetricNames = MetricNames()

    @property
    def fresh_seconds(self) -> float:
        """A look that is older says nothing of now: the next one, given all its patience, is overdue twice."""
        return 2.0 * (self.look_seconds + self.patience_seconds)

    @property
    def sample_seconds(self) -> float:
        """Between samples of one GPU, wherever they come from."""
        return self.look_seconds if self.exporters else self.scrape_seconds


class Settings(BaseSettings):
    """All settings of ``queuectl serve``."""

    model_config = SettingsConfigDict(
        env_prefix="QUEUECTL_", env_nested_delimiter="__", extra="forbid"
    )

    database_url: str | None = Field(
        None, description="postgresql://… of a server >= 15; unset = embedded Postgres"
    )
    api_database_url: str | None = Field(
        None, description="the same database under the role of the API; unset = database_url"
    )
    kubeconfig: Path | None = Field(None, description="path; unset = in-cluster")
    namespace: str = Field("queuectl-system", description="where the LeaderLease lives")
    holder: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        description="our name in the LeaderLease; unique per process",
    )
    listen: str = Field("127.0.0.1:8000", description="REST API and dashboard")
    auth: Literal["kubernetes", "none"] | None = Field(
        None,
        description="who asks: kubernetes = the cluster's tokens and rights; none = nobody is asked, on loopback alone; "
        "unset = none on loopback, else kubernetes",
    )
    tls_cert_file: Path | None = Field(
        None, description="certificate with its chain, PEM; taken up anew when it is renewed"
    )
    tls_key_file: Path | None = Field(None, description="its key, PEM")
    tls: Literal["on", "off"] = Field(
        "on", description="off = other machines reach us by an ingress that ends TLS before us"
    )
    requests_per_second: float = Field(
        50.0, gt=0, description="of one caller at the REST API, in the long run"
    )
    request_burst: int = Field(500, ge=1, description="requests of one caller at once")
    trusted_proxies: str = Field(
        "",
        description="addresses and networks, by commas, of proxies whose X-Forwarded-For names the client",
    )
    audit_days: float = Field(400.0, gt=0, description="how long lines of the audit log are kept")
    metrics_listen: str = Field("127.0.0.1:8080", description="/metrics, /healthz and /readyz")

    debounce_seconds: float = Field(
        0.02, ge=0, description="wait after the first change before a cycle, to batch"
    )
    # More of it shortens waits and makes more, smaller cycles: in bench_replay 0.7 took 5 % more CPU than 0.4 for large gangs
    # that waited 0.2 s less, 0.25 took 5 % less and they waited 0.2 s more. Two fifths of a core leave a machine of two to
    # the API server.
    planning_share: float = Field(
        0.4,
        gt=0,
        le=1,
        description="largest share of one core spent on cycles, and as much again on diagnoses, what-ifs and previews",
    )
    defragment_seconds: float = Field(
        30.0,
        ge=0,
        description="least time between looks for gangs to move, where a queue allows it",
    )
    account_seconds: float = Field(
        60.0, gt=0, description="time between two entries in the usage ledger"
    )
    in_flight: int = Field(32, ge=1, description="API writes under way at once")
    events_per_second: float = Field(
        20.0, gt=0, description="status annotations and Events written for people"
    )
    tell_after_seconds: float = Field(
        2.0, ge=0, description="how long a pending reason must last before it is told"
    )

    lease_duration: float = Field(15.0, gt=0, description="seconds a LeaderLease lasts unrenewed")
    lease_renew: float = Field(
        3.0, gt=0, description="seconds between renewals; less than a third of the duration"
    )

    @field_validator("lease_renew")
    @classmethod
    def _time_for_two_renewals(cls, renew: float, given: ValidationInfo) -> float:
        """One renewal that gets no answer must not end a leadership."""
        duration = given.data.get("lease_duration", math.inf)
        if 3 * renew >= duration:
            raise ValueError(
                f"{renew:g} s is not less than a third of QUEUECTL_LEASE_DURATION, {duration:g} s"
            )
        return renew

    unschedulable_seconds: float = Field(
        30.0,
        gt=0,
        description="after which a start is given up whose pinned pod kube-scheduler refuses, or in whose "
        "place are pods of an earlier attempt",
    )
    force_delete_seconds: float | None = Field(
        None,
        gt=0,
        description="after which pods of evicted gangs that a dead node keeps Terminating are deleted, with "
        "deploy/optional/force-delete.yaml; unset = never",
    )
    shutdown_seconds: float = Field(10.0, gt=0, description="grace for writes under way at SIGTERM")

    prometheus_url: str | None = Field(
        None, description="Prometheus that knows what GPUs do; unset = utilization is unknown"
    )
    utilization: UtilizationSettings = UtilizationSettings()
    solver: SolverSettings = SolverSettings()
