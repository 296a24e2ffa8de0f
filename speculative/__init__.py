"""Draft proposers (floor 3), no torch: `make_proposer` by name, each behind the interface of `proposer`."""
