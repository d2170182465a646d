"""Data sets: flags, sources, pipelines, writing them; the verbs `data` and `input`."""
