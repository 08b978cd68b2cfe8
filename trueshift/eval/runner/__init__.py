"""Passes over the data, and what they record."""
