"""The clock, stop rules, telemetry and what a run observed. Imports no TensorFlow."""
