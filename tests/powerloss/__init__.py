"""What the loss of power leaves: programs are recorded, states that a crash may leave are built and opened again."""
