"""When a pipeline runs, and over which messages: schedules and ranges of time."""
