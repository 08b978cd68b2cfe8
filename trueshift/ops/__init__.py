"""Pure functions on tensors: the geometry of shifts, and choices that move with the content."""
