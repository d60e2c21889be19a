"""A fuzzer of the whole path of an input: objects, configuration, requests, selectors and snapshots. ``python -m tests.fuzz --help``."""
