"""The step on a device that works on its own: what a row needs from step to step lives there, a plan's changes follow
in one copy, the forward pass is a recorded graph where it can be, and tokens come back by a copy that nobody waits for
before the next step is launched.

Nothing is imported here: torch comes with `runner`.
"""
