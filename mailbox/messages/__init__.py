"""Typed messages, one module per boundary. New fields go last with a default; unions are closed; nothing is pickled."""
