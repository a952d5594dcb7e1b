"""The retriever service: suffix matches in released indexes, stateless, following the store's index aliases."""
