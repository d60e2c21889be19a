"""Devices of dynamic resource allocation as amounts that the planner can count."""
