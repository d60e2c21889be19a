"""Settings of the controller: environment variables ``QUEUECTL_<FIELD>``, nested with ``__``.

Every field says what it rules and in which unit. There is no setting that nothing reads.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SolverSettings(BaseModel):
    """Limits of the planner (domain.snapshot.SolverLimits)."""

    model_config = ConfigDict(extra="forbid")

    deterministic_time: float = Field(
        0.25, gt=0, description="first budget of one solve, CP-SAT's deterministic time"
    )
    wall_seconds: float = Field(10.0, gt=0, description="safety net; a plan cut by it is discarded")
    window: int = Field(1000, ge=1, description="pending gangs looked at in one cycle")
    lease_seconds: float = Field(
        600.0, gt=0, description="how long freed capacity is held for its preemptor"
    )


class Settings(BaseSettings):
    """All settings of ``queuectl serve``."""

    model_config = SettingsConfigDict(
        env_prefix="QUEUECTL_", env_nested_delimiter="__", extra="forbid"
    )

    database_url: str | None = Field(
        None, description="postgresql://… of a server >= 15; unset = embedded Postgres"
    )
    kubeconfig: Path | None = Field(None, description="path; unset = in-cluster")
    namespace: str = Field("queuectl-system", description="where the LeaderLease lives")
    holder: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        description="our name in the LeaderLease; unique per process",
    )
    listen: str = Field("127.0.0.1:8000", description="REST API; loopback only")
    metrics_listen: str = Field("127.0.0.1:8080", description="/metrics, /healthz and /readyz")

    debounce_seconds: float = Field(
        0.02, ge=0, description="wait after the first change before a cycle, to batch"
    )
    planning_share: float = Field(
        0.25, gt=0, le=1, description="largest share of time spent planning; the rest is paused"
    )
    defragment_seconds: float = Field(
        30.0,
        ge=0,
        description="least time between looks for gangs to move, where a queue allows it",
    )
    in_flight: int = Field(32, ge=1, description="API writes under way at once")
    events_per_second: float = Field(
        20.0, gt=0, description="status annotations and Events written for people"
    )
    tell_after_seconds: float = Field(
        2.0, ge=0, description="how long a pending reason must last before it is told"
    )

    lease_duration: float = Field(15.0, gt=0, description="seconds a LeaderLease lasts unrenewed")
    lease_renew: float = Field(3.0, gt=0, description="seconds between renewals")

    unschedulable_seconds: float = Field(
        30.0, gt=0, description="kube-scheduler's refusal of a pin before it is given up"
    )
    shutdown_seconds: float = Field(10.0, gt=0, description="grace for writes under way at SIGTERM")

    solver: SolverSettings = SolverSettings()
