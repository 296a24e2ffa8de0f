"""What ranks do together, by what they share: memory of one host, NCCL, memory of GPUs that reach each other."""
