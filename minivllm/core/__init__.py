"""The engine core: schedules requests onto the executor, one step at a time."""
