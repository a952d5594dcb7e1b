"""Measuring what trees are shaped by: acceptance by depth and rank, the target's t(n), the cost of drafting."""
