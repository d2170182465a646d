"""Finding of the gate shown as text, JSON, JUnit XML, Markdown, benchmark JSON and plots."""
