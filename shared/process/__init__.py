"""The process and its platform: CPUs, memory, open files, the interpreter, and metrics of the process itself."""
