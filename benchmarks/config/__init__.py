"""From flags to one decided `Config`; every rule that involves more than one flag."""
