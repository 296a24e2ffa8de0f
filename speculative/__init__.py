"""Draft proposers and acceptance (floor 3). Nothing here yet: speculation is refused as not supported yet."""
