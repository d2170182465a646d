"""Several processes at work: start, meet, watch each other, end together."""
