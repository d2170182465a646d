"""What a run does between its measured steps: evaluation, summaries, profiles."""
