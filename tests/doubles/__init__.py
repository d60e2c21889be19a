"""In-memory forms of the adapters; each passes the same conformance tests as the real one."""
