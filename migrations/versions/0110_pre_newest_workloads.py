"""The newest workloads that have not finished, for lists."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0110_pre"
down_revision = "0109_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "workloads_newest_idx",
        "workloads",
        ["queued_at", "namespace", "name", "uid"],
        postgresql_where=sa.text("finished_at IS NULL"),
    )
