"""The usage ledger: marks that commits write, and the hours, losses and free GPUs that are made of them."""

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
    """What workloads do from a time on."""
    op.create_table(
        "usage_marks",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("uid", KEY, nullable=False),
        sa.Column("mark", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="usage_marks_pkey"),
        comment="what workloads do from a time on, until it is folded into usage_hours",
    )
    op.create_table(
        "usage_meters",
        sa.Column("uid", KEY, nullable=False),
        sa.Column("meter", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="usage_meters_pkey"),
        comment="what each live workload does since its last folded mark",
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
        comment="on whose account: a workload under one queue, cohort, user and set of labels",
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
        comment="work that evictions threw away",
    )
    op.create_table(
        "usage_fleet",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("flavor", KEY, nullable=False),
        *_amounts("seconds", "capacity", "free", "fragmented", "stranded"),
        sa.PrimaryKeyConstraint("hour", "flavor", name="usage_fleet_pkey"),
        comment="GPU-seconds that nodes had, that were free, and that no gang could use; seconds that were looked at",
    )


def _progress() -> None:
    op.create_table(
        "usage_progress",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("until", sa.Double(), nullable=True),
        sa.CheckConstraint("singleton", name=op.f("usage_progress_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("usage_progress_pkey")),
        comment="until when everything is accounted for in usage_hours; null = nothing yet",
    )
    op.execute("INSERT INTO usage_progress DEFAULT VALUES")
