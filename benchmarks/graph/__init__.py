"""What a run builds: its graph, and how its steps are taken and counted."""
