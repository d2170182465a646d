"""Images on their way from disk to tower."""
