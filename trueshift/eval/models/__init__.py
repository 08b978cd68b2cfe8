"""Models to evaluate: how they are loaded and called."""
