"""An index that finds the hours of a workload in the usage ledger. The controller deletes subjects without hours."""

from __future__ import annotations

from alembic import op

revision = "0008_pre"
down_revision = "0007_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("usage_hours_subject_idx", "usage_hours", ["subject"])
