"""Fast network operations."""
