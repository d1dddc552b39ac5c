"""Simpler choices with which a history still fails."""

from __future__ import annotations

from collections.abc import Callable

ATTEMPTS_MAX = 1500


def shrunk(octets: bytes, fails: Callable[[bytes], bool], attempts_max: int = ATTEMPTS_MAX) -> bytes:
    """Cut choices off the end, and make others calm, block by block, as long as it `fails`."""
    best = octets
    attempts = 0

    def try_out(candidate: bytes) -> bool:
        nonlocal best, attempts
        attempts += 1
        if candidate != best and fails(candidate):
            best = candidate
            return True
        return False

    size = len(best)
    while size >= 1 and attempts < attempts_max:
        while len(best) > size and attempts < attempts_max and try_out(best[:-size]):
            pass
        size //= 2
    size = max(1, len(best) // 4)
    while attempts < attempts_max:
        for at in range(0, len(best), size):
            piece = best[at : at + size]
            if any(piece) and attempts < attempts_max:
                try_out(best[:at] + bytes(len(piece)) + best[at + size :]) or (
                    size == 1 and _smaller(best, at, try_out)
                )
        if size == 1:
            break
        size //= 2
    return best.rstrip(b"\0")


def _smaller(octets: bytes, at: int, try_out: Callable[[bytes], bool]) -> bool:
    half = octets[at] // 2
    return bool(half) and try_out(octets[:at] + bytes([half]) + octets[at + 1 :])
