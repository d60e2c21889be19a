"""REST over the ledger and the configuration; metrics and health. See docs/architecture.md and docs/openapi.json."""
