"""The sub-commands of `triptych`: one module for each, imported when it is used. `root.py` lists them."""
