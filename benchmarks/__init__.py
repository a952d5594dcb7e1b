"""Benchmarks: scripts that print ratios from one run, side by side with peers. Dated results stand in docs/benchmarks/."""
