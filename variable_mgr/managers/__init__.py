"""The variable managers: where variables live, and how gradients reach them."""
