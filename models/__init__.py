"""Target and draft checkpoints: resolving and loading them, and the pass over prefix and tree rows."""
