"""The exact choice of a grid."""
