"""One run: session, steps, record, display."""
