"""After a post revision, the database refuses the writes of releases that do not register their replicas."""

from __future__ import annotations

from alembic import op

revision = "0019_pre"
down_revision = "0018_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Such a release does not read the requirement of the schema, and its sessions name no version.

    It deletes old lines of the audit log when it starts, and each change by its API begins with a line there. Before the
    first post revision, the triggers change nothing.
    """
    op.execute(
        """
        CREATE FUNCTION refuse_release_without_registration() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            required text;
        BEGIN
            IF current_setting('application_name') = 'queuectl' THEN
                SELECT revision INTO required FROM schema_requirement;
                IF required <> '' THEN
                    RAISE EXCEPTION 'the schema has %, the second half of the upgrade to a newer release: '
                        'run the newer release, or restore a backup from before that upgrade', required;
                END IF;
            END IF;
            RETURN NULL;
        END $$
        """
    )
    for table in ("leadership", "audit"):
        op.execute(
            f"""
            CREATE TRIGGER {table}_needs_registration BEFORE INSERT OR UPDATE OR DELETE ON {table}
            FOR EACH STATEMENT EXECUTE FUNCTION refuse_release_without_registration()
            """
        )
