"""What happens between steps: evaluation, summaries, and what decides when."""
