"""What a worker does with a plan: persistent batch, inputs of a step, paged attention, sampling, result.

`runner.ModelRunner` computes a model, `null_runner.NullRunner` none. Nothing is imported here, for torch comes with the
former alone, and with it only where the model is not compiled for the CPU.
"""
