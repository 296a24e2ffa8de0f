"""Triton kernels, one operation a file: the kernel, a function around it that writes into outputs that are there
already (it allocates nothing and waits for nothing, so that a CUDA graph can hold it), and a plain-torch twin.

Nothing outside this folder imports triton, and nothing here is imported before a worker has a GPU.
"""
