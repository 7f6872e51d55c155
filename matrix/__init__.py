"""Host side of the compatibility matrix: decides, builds, runs, keeps, judges, publishes.

Nothing here imports torch or any software under test; that lives in environments of its own,
reached through one JSON request and one JSON-lines answer per probe process.
"""
