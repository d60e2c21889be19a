-- Optional: separate database roles for the leader and for the API. One role that owns all tables works too.
--
-- Run this file as the owner of the tables, after `queuectl db upgrade`. The owner needs CREATEROLE, or an administrator
-- creates the two roles before. Then set their passwords and the URLs: docs/how-to/database.md. You can run the file again.
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

-- Both roles read all tables, also those of later releases.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO queuectl_leader, queuectl_api;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO queuectl_leader, queuectl_api;

-- The leader writes state. It cannot change tables, the revision of the schema, or the releases that can use it.
GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO queuectl_leader;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT INSERT, UPDATE, DELETE ON TABLES TO queuectl_leader;
REVOKE INSERT, UPDATE, DELETE ON alembic_version, schema_requirement FROM queuectl_leader;

-- The API adds commands for the leader, and writes configuration, sessions and the audit log. It inserts initial past use for
-- LocalQueues that come from another controller.
GRANT INSERT ON commands, past_use TO queuectl_api;
-- To lock the row meanwhile, which needs the right to update a column. The API cannot update the epoch.
GRANT UPDATE (taken_at) ON leadership TO queuectl_api;
GRANT INSERT, UPDATE, DELETE ON documents, sessions TO queuectl_api;
GRANT UPDATE ON configuration TO queuectl_api;
GRANT INSERT, UPDATE, DELETE ON audit TO queuectl_api;
-- A person confirms a mass deletion of objects that own the configuration.
GRANT UPDATE (confirmed) ON followed_objects TO queuectl_api;
-- Users subscribe to events, and each replica delivers them.
GRANT INSERT, UPDATE ON notification_progress TO queuectl_api;
GRANT INSERT, UPDATE, DELETE ON subscriptions, addresses TO queuectl_api;
-- An administrator tests a receiver.
GRANT INSERT ON notifications TO queuectl_api;
-- Each replica registers its release.
GRANT INSERT, UPDATE, DELETE ON replicas TO queuectl_api;
