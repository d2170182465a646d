"""The arithmetic of every variable manager, compared with a NumPy reference."""
