"""Peers: other engines, run on the same checkpoint and prompts in processes of their own."""
