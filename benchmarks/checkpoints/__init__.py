"""Saved training: files of weights and all that continues with them."""
