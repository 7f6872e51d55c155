"""From a stack to an environment on this machine."""
