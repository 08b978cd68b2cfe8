"""Where tokens lie: shifts, grids, windows, resampling, relative positions."""
