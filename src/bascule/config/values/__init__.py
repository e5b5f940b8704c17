"""Types of settings and how a value is read: durations, sizes, addresses, YAML."""
