"""Native histograms in arrays: batches of them, their arithmetic, and what is read from them.

Semantics: the native histograms specification, https://prometheus.io/docs/specs/native_histograms. Nothing here knows
about storage, HTTP or queries.
"""
