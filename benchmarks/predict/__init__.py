"""How fast training would be on hardware that is not here: a step is simulated, and the model judged."""
