"""``queuectl doctor``: problems of the server, the database and the cluster, with fixes.

``cluster`` and ``server`` read; ``judge`` turns what they read into findings.
"""
