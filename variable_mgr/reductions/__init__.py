"""How gradients of several towers become their mean."""
