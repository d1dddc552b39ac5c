"""The coordinator process: the HTTP interface, and the control plane."""
