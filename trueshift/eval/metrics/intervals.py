"""How far a measured rate may be from the true one."""

from math import sqrt
from statistics import NormalDist


def wilson_interval(rate: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    r"""Wilson's score interval for a rate seen on ``count`` independent images.

    .. math:: \frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

    It has a width also at 0 and 100 %. Where an image contributes a mean of several answers instead of a yes or no,
    the variance can only be smaller than p (1 - p), and the interval is too wide rather than too narrow.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: needs a number between 0 and 1, e.g. 0.95")
    if count < 1:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = rate + z * z / (2 * count)
    half = z * sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    # rounding may leave the ends a little inside of a rate of 0 or 1
    return max(0.0, min(rate, (middle - half) / scale)), min(1.0, max(rate, (middle + half) / scale))
