"""Results for other people and programs: formats, tables of figures, folders to put online. Imports no TensorFlow."""
