"""The leader: it observes, plans, commits and acts, and it alone changes workloads."""
