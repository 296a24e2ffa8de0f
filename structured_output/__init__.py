"""Grammars and bitmasks (floor 3): what makes an answer have the form that its request wants. No torch, no asyncio.

Nothing is imported here: a process without a grammar actor loads none of it.
"""
