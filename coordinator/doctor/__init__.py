"""`triptych doctor`: what is wrong with the machine, the settings, the data directory and a running cluster."""
