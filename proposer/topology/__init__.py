"""Shapes of candidate trees: which nodes a round offers, planned from measurement or grown by value. Pure numpy."""
