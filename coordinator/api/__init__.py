"""The HTTP endpoints of every area: what requests ask for, and answers in the form that the interface describes."""
