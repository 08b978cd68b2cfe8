"""What every room shares: files, locks, checks, random numbers, processes, provenance."""
