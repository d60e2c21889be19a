"""Whether a workload still has hours in the usage ledger is found by an index: without any, its subject is deleted."""

from __future__ import annotations

from alembic import op

revision = "0008_pre"
down_revision = "0007_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("usage_hours_subject_idx", "usage_hours", ["subject"])
