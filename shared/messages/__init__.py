"""What the coordinator asks of workers, and what they answer: one module for each area."""
