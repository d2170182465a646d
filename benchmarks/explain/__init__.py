"""What a configuration, a model, a cluster or a machine is, before anything is measured."""
