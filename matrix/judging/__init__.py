"""From evidence to verdicts. All of it is derived, and nothing is stored as truth."""
