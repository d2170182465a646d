"""Traces of steps: events, transfers, times of towers, profiles."""
