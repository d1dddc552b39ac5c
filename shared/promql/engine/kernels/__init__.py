"""The arithmetic of the engine: compiled loops over arrays that know nothing about queries."""
