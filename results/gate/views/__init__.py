"""The findings of the gate as text, Markdown, JSON and JUnit XML, and the history of baselines as text and plots."""
