"""The verb `data`: makes, converts, damages and checks data sets."""
