"""The usage ledger: the marks that commits write, and the hours, losses and free GPUs that are computed from them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007_pre"
down_revision = "0006_pre"
branch_labels = None
depends_on = None

KEY = sa.Text(collation="C")


def upgrade() -> None:
    _marks()
    _accounts()
    _hours()
    _progress()


def _amounts(*names: str) -> list[sa.Column]:
    return [sa.Column(name, sa.Double(), nullable=False) for name in names]


def _marks() -> None:
    """Changes of the activity of workloads."""
    op.create_table(
        "usage_marks",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("uid", KEY, nullable=False),
        sa.Column("mark", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="usage_marks_pkey"),
        comment="changes of activity, until they are added to usage_hours",
    )
    op.create_table(
        "usage_meters",
        sa.Column("uid", KEY, nullable=False),
        sa.Column("meter", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="usage_meters_pkey"),
        comment="activity of each live workload since its last mark",
    )


def _accounts() -> None:
    op.create_table(
        "usage_subjects",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("uid", KEY, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        *(
            sa.Column(name, KEY, nullable=False)
            for name in ("namespace", "name", "queue", "cluster_queue", "cohort", "user")
        ),
        sa.Column("labels", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="usage_subjects_pkey"),
        comment="a workload under one queue, cohort, user and set of labels",
    )
    op.create_index("usage_subjects_uid_idx", "usage_subjects", ["uid"])


def _hours() -> None:
    op.create_table(
        "usage_hours",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.Uuid(), nullable=False),
        sa.Column("flavor", KEY, nullable=False),
        sa.Column("price", KEY, nullable=False),
        *_amounts("allocated", "used", "idle", "stuck", "unknown"),
        *_amounts("waited", "waiting", "cost", "unpriced"),
        sa.PrimaryKeyConstraint("hour", "subject", "flavor", "price", name="usage_hours_pkey"),
        comment="GPU-seconds by hour; waiting in seconds, cost in money; hour is its start in unix seconds",
        postgresql_with={"fillfactor": 70},
    )
    op.create_table(
        "usage_losses",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.Uuid(), nullable=False),
        sa.Column("flavor", KEY, nullable=False),
        sa.Column("reason", KEY, nullable=False),
        *_amounts("gpu_seconds"),
        sa.Column("evictions", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "subject", "flavor", "reason", name="usage_losses_pkey"),
        comment="work that evictions lost",
    )
    op.create_table(
        "usage_fleet",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("flavor", KEY, nullable=False),
        *_amounts("seconds", "capacity", "free", "fragmented", "stranded"),
        sa.PrimaryKeyConstraint("hour", "flavor", name="usage_fleet_pkey"),
        comment="GPU-seconds of nodes: capacity, free, and unusable for any gang; seconds that were observed",
    )


def _progress() -> None:
    op.create_table(
        "usage_progress",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("until", sa.Double(), nullable=True),
        sa.CheckConstraint("singleton", name=op.f("usage_progress_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("usage_progress_pkey")),
        comment="end of the time that usage_hours accounts for; null = none",
    )
    op.execute("INSERT INTO usage_progress DEFAULT VALUES")
