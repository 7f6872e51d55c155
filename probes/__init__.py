"""Probes: one question each, asked inside the tested environment.

Only the standard library, torch and the software under test are imported here. Nothing of the
host side is, and nothing here is installed anywhere: `runner.py` makes this package importable.
"""
