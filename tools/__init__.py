"""Programs for the project's own work: measurements and checks that are no tests."""
