"""Kernels of `kernels/gpu` on a GPU: each checked against its twin, timed in a CUDA graph, printed beside its floor.

Each module is a command: `python -m callboard.bench.gpu_kernels.<name>`; torch, triton and numpy are all it needs.
"""
