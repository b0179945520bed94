"""Kernels for GPUs, in Triton: one program a sequence and direction; imported only where they run.

Vectors of one level are handed to the next through memory that belongs to one program, with a barrier between writing
and reading. No kernel adds atomically: sums have one order, and gradients are the same in every run.
"""
