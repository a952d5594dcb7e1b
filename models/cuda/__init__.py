"""The pass on CUDA devices: static shapes, captured graphs, attention over paths in paged memory."""
