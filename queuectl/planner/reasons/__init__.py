"""Reasons of refusals in numbers and in one sentence."""
