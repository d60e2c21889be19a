"""Search for a part of the name of a finished workload."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0107_pre"
down_revision = "0106_pre"
branch_labels = None
depends_on = None

_TRIGRAMS = """
CREATE FUNCTION name_trigrams(namespace text, name text) RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ARRAY(
    SELECT DISTINCT substr(namespace || '/' || name, start, 3)
    FROM generate_series(1, length(namespace) + length(name) - 1) AS start
)
"""


def upgrade() -> None:
    op.execute(_TRIGRAMS)
    op.create_index(
        "workloads_search_idx",
        "workloads",
        [sa.text("name_trigrams(namespace, name)")],
        postgresql_using="gin",
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
