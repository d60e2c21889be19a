"""The matrix of job kinds and features, each cell a system test with the real controller of the kind.

To add a kind, add a :class:`~tests.kinds.entry.Entry` to :data:`~tests.kinds.entries.ENTRIES`.
"""
