"""Finds the principal axes of vectors that are spread over the workers, from products with their covariance: the block
Lanczos method (Golub and Underwood, "The block Lanczos method for computing eigenvalues", 1977), with every direction
made orthogonal to all earlier ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Floats

SHOWN_AXES = 2
BLOCK = 8
"""Directions of a step."""
STEPS_MAX = 12
"""The limit on the directions of all steps, which take 25 MB with their products at 16,384 components. Vectors that
vary equally in all directions have no first axes; any axes will do then."""
TURN_MAX = 0.01
"""The axes are good enough when a step turns them by less than this, as the sine of the angle: a point then moves by 1
% of its distance from the centre."""
REST_MIN = 1e-5
"""When this share or less of the products is outside the earlier directions, only rounding errors are left to find."""

Table = NDArray[np.float64]


class AxesSearch:
    """`block` float32[b, dimension] are the directions to be multiplied next, orthonormal; `add` takes the products.
    `axes` float32[a, dimension] are the best so far, in descending order of the variance along them; a = SHOWN_AXES, or
    1 if there is one component only. The sign of an axis is that of its largest component."""

    def __init__(self, dimension: int) -> None:
        start = np.random.default_rng(0).standard_normal((min(BLOCK, dimension), dimension))
        self.block: Floats = _orthonormal(start).astype(np.float32)
        self.axes: Floats = self.block[:SHOWN_AXES]
        self.is_over = False
        self._basis: Table = np.zeros((0, dimension))
        self._images: Table = np.zeros((0, dimension))
        self._steps = 0

    def add(self, products: Table) -> None:
        """`products` float64[b, dimension]: the covariance, or a multiple of it, applied to each direction of
        `block`."""
        self._basis = np.concatenate([self._basis, self.block.astype(np.float64)])
        self._images = np.concatenate([self._images, products])
        self._steps += 1
        within = self._basis @ self._images.T
        directions = np.linalg.eigh((within + within.T) / 2)[1][:, ::-1].T[:SHOWN_AXES]
        best = directions @ self._basis
        largest = np.abs(best).argmax(axis=1)
        best *= np.sign(best[np.arange(len(best)), largest])[:, None]
        turn = np.linalg.norm(best - (best @ self.axes.T) @ self.axes, 2)
        self.axes = best.astype(np.float32)
        outside = self._beside(products)
        self.is_over = bool(
            (self._steps > 1 and turn < TURN_MAX)
            or self._steps == STEPS_MAX
            or len(self._basis) == self._basis.shape[1]
            or np.linalg.norm(outside) <= REST_MIN * np.linalg.norm(products)
        )
        if not self.is_over:
            # Once more, because rounding turns what is left of a product that was nearly inside.
            room = self._basis.shape[1] - len(self._basis)
            self.block = _orthonormal(self._beside(_orthonormal(outside))[:room]).astype(np.float32)

    def _beside(self, vectors: Table) -> Table:
        """The part of the vectors that is outside the basis."""
        return vectors - (vectors @ self._basis.T) @ self._basis


def _orthonormal(rows: Table) -> Table:
    return np.ascontiguousarray(np.linalg.qr(rows.T)[0].T)
