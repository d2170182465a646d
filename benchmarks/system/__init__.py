"""What the machine and the software are. Imports no TensorFlow."""
