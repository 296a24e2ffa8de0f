"""Every input of the scheduler in a file, and what can be done with it: replay, questions, what-if.

Nothing is imported here: an engine without a journal reads none of it.
"""
