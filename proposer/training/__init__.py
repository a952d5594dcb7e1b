"""Training of draft heads: seed prompts, self-distilled data, losses, loops."""
