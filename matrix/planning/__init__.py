"""From a campaign to a plan: which stacks, which cells, in which order."""
