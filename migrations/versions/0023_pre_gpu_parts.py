"""The sizes of gangs in parts of GPUs, and the GPU-hours of the whole cluster."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023_pre"
down_revision = "0022_pre"
branch_labels = None
depends_on = None

_AMOUNTS = ("physical", "unallocated", "unmanaged", "unhealthy")


def upgrade() -> None:
    """Replicas of the release before write whole GPUs only: null, or parts of another number of GPUs, stand for these."""
    op.add_column("workloads", sa.Column("gpu_parts", sa.BigInteger(), nullable=True))
    op.create_table(
        "usage_cluster",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _AMOUNTS),
        sa.PrimaryKeyConstraint("hour", name="usage_cluster_pkey"),
        comment="all GPUs of the cluster by hour, in units of the usage ledger; gangs hold the rest",
    )
