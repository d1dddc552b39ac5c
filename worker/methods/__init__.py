"""What a worker can be asked to do: the methods of each area, and the table of all of them."""
