"""Where tokens stand: shifts, grids, windows, resampling, relative positions."""
