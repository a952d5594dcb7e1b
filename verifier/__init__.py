"""The verifier engine: sessions over a target, one ragged pass for many rounds, publication as a transaction."""
