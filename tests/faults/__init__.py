"""The fault suite: real faults, injected into real processes, and what must hold afterwards.

`python -m tests.faults` injects them (`make faults`); docs/reference/reliability.md lists them.
"""
