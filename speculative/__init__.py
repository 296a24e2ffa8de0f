"""Draft proposers and acceptance (floor 3). Nothing here yet: topologies that ask for speculation are refused as not supported yet."""
