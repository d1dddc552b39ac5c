"""Limits on connections, requests and the memory they take, and overload control: which requests wait and which are
refused."""
