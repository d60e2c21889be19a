"""Runs of published traces through ``queuectl simulate``: ``make traces``."""
