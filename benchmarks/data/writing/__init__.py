"""Writes data sets: generated ones, and conversions."""
