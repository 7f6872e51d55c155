"""From a cell to a run: processes, GPUs, and what came of them."""
