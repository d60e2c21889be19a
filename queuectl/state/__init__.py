"""The state in memory that the leader works on: the cluster from the watch, the ledger, and snapshots of both.

- :mod:`mirror`: the cluster as the watch last showed it
- :mod:`usage`: which pod counts where
- :mod:`ledger`: the leader's working copy of the database
- :mod:`freeze`: mirror + ledger + configuration -> Snapshot

It has a single writer, is synchronous and does no I/O: control/ calls it from one event loop.
"""
