"""Measurements of the engine and its data, on stub probes: `nox -s bench`."""
