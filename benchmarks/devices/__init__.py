"""The devices that a run computes on: flags, towers' devices, sessions, peaks; the verb `devices`."""
