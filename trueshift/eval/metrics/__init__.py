"""Numbers: consistency, accuracy, mean IoU, and their intervals."""
