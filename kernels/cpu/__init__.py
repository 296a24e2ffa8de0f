"""Kernels for the CPU, compiled at first use by numba: packed linears, paged attention, a whole decoder step,
sampling.

Where numba or the instructions are missing, the plain-torch twins one floor up serve (`isa.host_isa` says which).
"""
