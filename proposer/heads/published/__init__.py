"""Heads as others publish them: their layouts read strictly, and EAGLE's own functions where ours are others."""
