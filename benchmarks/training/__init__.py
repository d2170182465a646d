"""The TensorFlow graph of a training step."""
