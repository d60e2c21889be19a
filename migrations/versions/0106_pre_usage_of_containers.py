"""CPU and memory that the containers of each workload used and requested."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0106_pre"
down_revision = "0105_pre"
branch_labels = None
depends_on = None

_AMOUNTS = (
    *("pod_seconds", "cpu_seconds", "cpu_requested"),
    *("memory_seconds", "memory_requested", "memory_peak"),
)


def upgrade() -> None:
    op.create_table(
        "usage_containers",
        sa.Column("uid", sa.Text(collation="C"), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=False) for name in _AMOUNTS),
        sa.PrimaryKeyConstraint("uid", name=op.f("usage_containers_pkey")),
        comment="CPU and memory of the pods of each workload, over the time that was measured: core-seconds and byte-seconds; memory_peak in bytes, of one pod",
        postgresql_with={"fillfactor": 70},
    )
