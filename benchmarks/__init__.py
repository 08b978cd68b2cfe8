"""Everything that measures: see README.md."""
