"""The log as both sides see it: records as blocks of columns, their headers, and the slots of their keys."""
