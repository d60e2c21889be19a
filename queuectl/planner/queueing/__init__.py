"""Whose turn it is and what quota says: order within and among ClusterQueues, cohorts, shares, limits."""
