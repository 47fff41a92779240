"""How a compiled model is trained: the spec (validated once), the objective (the law), the loops, the logs."""
