"""Advice: which changes of the configuration would have served the recorded jobs better, and how sure that is."""
