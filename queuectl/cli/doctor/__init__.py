"""``queuectl doctor``: what is wrong with a cluster, a server or a database for queuectl, and how to mend it.

Readers fetch (``cluster``, ``server``); judges (``judge``) look at what was fetched and do nothing else.
"""
