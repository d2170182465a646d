"""The command line: verbs, help, and the verbs that train nothing."""
