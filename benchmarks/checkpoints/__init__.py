"""Checkpoints: when they are saved, files, formats, continuing; the verb `export_model`."""
