"""LADD's style of a client: the low-frequency amplitude of its images.

Shenaj, Fanì, Toldo, Caldarola, Tavera, Michieli, Ciccone, Zanuttigh, Caputo: Learning Across
Domains and Devices: Style-Driven Source-Free Domain Adaptation in Clustered Federated Learning,
WACV 2023, https://arxiv.org/abs/2210.02326

The server clusters clients by it.
"""

import torch
from torch import Tensor

__all__ = ["amplitude_style", "style_clusters", "style_length"]

_BAND = 0.05  # LADD's window
_MAX_CLUSTERS = 19  # LADD searches up to 19


def amplitude_style(images: Tensor, band: float = _BAND) -> Tensor:
    """Mean amplitude spectrum around zero frequency, channel by channel.

    Args:
        images: [N, 3, H, W].
        band: half-width of the central window as a share of the shorter side; at least one
            frequency, so 3 × 3 × 3 = 27 numbers at 32 pixels.

    Returns:
        [3 · (2b+1)²], float64.
    """
    height, width = images.shape[-2:]
    reach = _reach(min(height, width), band)
    amplitude = torch.fft.fftshift(torch.fft.fft2(images.to(torch.float64)).abs(), dim=(-2, -1))
    row, column = height // 2, width // 2
    window = amplitude[:, :, row - reach : row + reach + 1, column - reach : column + reach + 1]
    style: Tensor = window.mean(dim=0).flatten()
    return style


def style_length(side: int, band: float = _BAND) -> int:
    """How many numbers the style of square images has."""
    return 3 * (2 * _reach(side, band) + 1) ** 2


def _reach(side: int, band: float) -> int:
    return max(1, int(band * side))


def style_clusters(styles: Tensor, seed: int = 0) -> Tensor:
    """[K] clusters by K-means, with the number of clusters that has the best silhouette."""
    # Here, since importing them takes longer than importing all the rest, and few runs need them.
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    count = len(styles)
    best, best_score = torch.zeros(count, dtype=torch.int64), -1.0
    points = styles.to(torch.float64).numpy()
    distinct = len(styles.unique(dim=0))
    for k in range(2, min(_MAX_CLUSTERS, count - 1, distinct) + 1):
        labels = KMeans(k, n_init=10, random_state=seed).fit_predict(points)
        score = float(silhouette_score(points, labels))
        if score > best_score:
            best, best_score = torch.from_numpy(labels).to(torch.int64), score
    return _in_order(best)


def _in_order(labels: Tensor) -> Tensor:
    """Renumber clusters in the order of their first client, as FINCH does."""
    names: dict[int, int] = {}
    return torch.tensor([names.setdefault(label, len(names)) for label in labels.tolist()])
