"""Which tokens need the nonlinear path (Balogh). No notebook uses this room yet, so nothing
stands in it."""
