"""What stands before the routes: who asks, how often, with how large a body, and that it is written down.

Each module is one layer of the application; :mod:`queuectl.api.app` says in which order they stand.
"""
