"""Planned starts: when the first gangs that wait can start, and which later gangs start before them without a delay."""
