"""PromQL: the language (text to typed tree and back), the engine, and values as they are sent and as they are shown."""
