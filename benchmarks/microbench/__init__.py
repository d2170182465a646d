"""One part measured alone: reductions, input stages, matrix products."""
