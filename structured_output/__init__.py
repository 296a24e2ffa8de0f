"""Grammars and bitmasks (floor 3). Nothing here yet: constrained requests are refused as not supported yet."""
