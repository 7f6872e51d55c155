"""The command line behind the nox sessions."""
