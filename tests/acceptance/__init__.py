"""What a user can do, as the project's requirements list it: commands, and what must be seen.

`python -m tests.acceptance` runs them (`make acceptance`); docs/acceptance.md shows them with what was seen.
"""
