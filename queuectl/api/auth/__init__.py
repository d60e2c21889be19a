"""Middleware before the routes: authentication, rate limits, sessions and the audit log.

:mod:`queuectl.api.auth.layers` sets the order of the layers.
"""
