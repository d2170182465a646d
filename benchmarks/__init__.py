"""How a run is done: flags -> configuration -> graph -> timed steps."""
