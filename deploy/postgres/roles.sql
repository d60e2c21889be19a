-- Database roles of their own for the leader and for the API. Optional: one role that owns everything works too.
--
-- Run it as the role that migrates, which owns the tables, after `queuectl db upgrade`; that role needs CREATEROLE, or an
-- administrator creates the two roles before. Then give each a password, and see docs/how-to/database.md for the settings.
-- It may be run again.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'queuectl_leader') THEN
    CREATE ROLE queuectl_leader LOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'queuectl_api') THEN
    CREATE ROLE queuectl_api LOGIN;
  END IF;
END
$$;

GRANT USAGE ON SCHEMA public TO queuectl_leader, queuectl_api;

-- Both read everything, also what later releases add.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO queuectl_leader, queuectl_api;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO queuectl_leader, queuectl_api;

-- The leader writes state. It changes no table, and which revision the schema has is not its to say.
GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO queuectl_leader;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT INSERT, UPDATE, DELETE ON TABLES TO queuectl_leader;
REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM queuectl_leader;

-- The API asks the leader by commands, and writes configuration, sessions and the audit log. Past use it gives where none is
-- known yet, to LocalQueues that come from another controller.
GRANT INSERT ON commands, past_use TO queuectl_api;
-- To lock the row while it does that, which needs the right to update some column. The epoch is not among them.
GRANT UPDATE (taken_at) ON leadership TO queuectl_api;
GRANT INSERT, UPDATE, DELETE ON documents, sessions TO queuectl_api;
GRANT UPDATE ON configuration TO queuectl_api;
GRANT INSERT, UPDATE, DELETE ON audit TO queuectl_api;
