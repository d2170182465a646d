"""One part measured alone: reductions, matrix products."""
