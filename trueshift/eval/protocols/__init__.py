"""What moves: shifts, distortions, and the named protocols made of them."""
