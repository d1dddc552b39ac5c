"""HTTP of every area: what requests ask for, and answers in the form the interface gives them."""
