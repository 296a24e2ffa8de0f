"""Operations on tensors, one a file: the plain-torch twins, which are also the CPU path."""
