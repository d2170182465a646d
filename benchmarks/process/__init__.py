"""This process and those it starts: signals, watchdog, TensorFlow's environment."""
