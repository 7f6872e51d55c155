"""One small module per shape of an upstream: where a function lives, how it wants to be called."""
