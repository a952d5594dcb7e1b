"""The pass on a CPU, compiled by LLVM at first use: no C compiler, no threads library, no GIL while it runs."""
