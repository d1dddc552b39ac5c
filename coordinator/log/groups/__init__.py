"""Consumer groups: members that divide the keys of the log among them."""
