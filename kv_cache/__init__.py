"""KV blocks: the pool, and the prefix cache over it (floor 2; no torch)."""
