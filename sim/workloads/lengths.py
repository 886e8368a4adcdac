"""Published length distributions as quantile tables: what the generator draws prompts and answers from.

The tables are summary statistics of public data: AzurePublicDataset 2023 conversation and code traces
(CC-BY-4.0; Patel et al., Splitwise, ISCA 2024), Vidur's arXiv summarisation lengths (MIT) and the Mooncake
conversation trace (Apache-2.0; Qin et al., FAST 2025). Geometric
interpolation between the points keeps every mean within 5% of the published one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Percent points of every table below.
_PERCENTS = (0, 1, 5, 10, 25, 50, 60, 70, 80, 85, 90, 95, 97.5, 99, 99.9, 100)


@dataclass(frozen=True, slots=True)
class LengthProfile:
    """Token lengths of one class: values at `_PERCENTS` for prompts and answers (drawn independently).

    The published traces show no correlation between the two (-0.11 and 0.00), so none is modelled.
    """

    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]

    def draw_inputs(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """`count` prompt lengths in tokens, >= 1."""
        return _draw(self.input_tokens, rng, count)

    def draw_outputs(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """`count` answer lengths in tokens, >= 1."""
        return _draw(self.output_tokens, rng, count)


def _draw(table: tuple[int, ...], rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Inverse-transform sampling; geometric between the points, since the tails are heavy."""
    logs = np.interp(rng.random(count) * 100.0, _PERCENTS, np.log(table))
    return np.maximum(1, np.rint(np.exp(logs))).astype(np.int64)


LENGTHS: Mapping[str, LengthProfile] = {
    # Azure 2023 conversation: input 1,155 mean, 4,083 p95; output 211 mean.
    "interactive": LengthProfile(
        (2, 29, 181, 207, 396, 1020, 1071, 1130, 1315, 1876, 2734, 4083, 4092, 4142, 6179, 14050),
        (7, 16, 41, 54, 85, 129, 177, 384, 400, 411, 424, 451, 522, 601, 954, 1000),
    ),
    # Azure 2023 code: input 2,048 mean; output 28 mean.
    "long": LengthProfile(
        (3, 17, 75, 147, 578, 1469, 1909, 2433, 3192, 3920, 5188, 7303, 7435, 7436, 7437, 7437),
        (6, 6, 6, 7, 9, 13, 16, 20, 29, 39, 55, 90, 145, 251, 825, 1899),
    ),
    # Vidur arXiv summarisation: input 2,588 mean; output 291 mean.
    "batch": LengthProfile(
        (1, 73, 749, 1242, 1986, 2730, 2996, 3249, 3490, 3597, 3702, 3813, 3876, 3933, 4012, 4054),
        (5, 36, 60, 78, 115, 167, 192, 222, 268, 304, 372, 736, 2507, 3271, 3844, 4056),
    ),
    # Mooncake conversation trace (FAST'25): input 12,035 mean, 39,550 p95; output 343 mean.
    "conversation": LengthProfile(
        (
            891,
            894,
            901,
            964,
            2306,
            6909,
            9570,
            13196,
            17869,
            21464,
            27367,
            39550,
            58976,
            85400,
            121300,
            126195,
        ),
        (1, 3, 10, 24, 156, 350, 399, 447, 504, 543, 597, 698, 835, 1118, 2000, 2000),
    ),
}
