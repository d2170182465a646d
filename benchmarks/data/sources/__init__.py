"""Files of data sets: finding, checking and reading them."""
