"""A run: from a configuration to a record, alone, in a cluster, or with a reference loop."""
