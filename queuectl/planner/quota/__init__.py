"""Quota: the tree of ClusterQueues and Cohorts, and dominant resource shares in it."""
