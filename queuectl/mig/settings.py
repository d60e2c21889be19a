"""The limits of changes of MIG configurations, as a part of the settings of the controller."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class MigSettings(BaseModel):
    """Limits of changes of MIG configurations (docs/how-to/reconfigure-mig.md)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    wait_seconds: float = Field(
        300.0,
        ge=0,
        description="how long a gang must be pending before nodes are changed for it, in seconds",
    )
    max_nodes: int = Field(
        4, ge=1, description="number of nodes that are changed at once, all for one gang"
    )
    timeout_seconds: float = Field(
        1800.0,
        gt=0,
        description="longest time for pods to leave a node, and for the MIG manager to apply a configuration, in seconds",
    )
    backoff_seconds: float = Field(
        1800.0,
        ge=0,
        description="shortest time between two changes of one node, or for one gang, in seconds; after repeated failures of a node it doubles",
    )
