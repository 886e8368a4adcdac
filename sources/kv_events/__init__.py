"""What engines say they cache: their KV event streams, folded, hashed and told to the fleet."""
