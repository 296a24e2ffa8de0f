"""What a worker does with a plan: persistent batch, inputs of a step, paged attention, sampling, result."""
