"""Many runs, each in a process of its own."""
