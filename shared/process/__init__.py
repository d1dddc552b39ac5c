"""The process and its platform: processors, memory, open files, the interpreter, and what the process measures of
itself."""
