"""How good the prediction of an ensemble is: accuracy, NLL, Brier. All from logits, in float64.

The prediction of an ensemble is the mean over members of their softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hydra_core.metrics.check import as_float, check_finite, check_labels, check_logits


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """log of the softmax over the last axis; stable, same shape."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def softmax(logits: Any) -> np.ndarray:
    """Softmax over the last axis in float64, whatever precision the logits have.

    Examples:
        >>> softmax([[0.0, 0.0], [1000.0, 0.0]]).tolist()
        [[0.5, 0.5], [1.0, 0.0]]
    """
    return np.exp(log_softmax(as_float(logits, "logits")))


def probs_to_logits(probs: Any) -> np.ndarray:
    """Logits whose softmax gives `probs`: their log, for methods that return probabilities only.

    A probability of 0 becomes the smallest positive number, as a log of 0 has no use.
    """
    array = check_finite(
        as_float(probs, "probabilities"), "probabilities", ("member", "sample", "class")[-np.ndim(probs) :]
    )
    return np.log(np.maximum(array, np.finfo(np.float64).tiny))


def logsumexp(values: np.ndarray, axis: int) -> np.ndarray:
    """log of the sum of exponentials; for finite values (scipy's general form costs ten times as much)."""
    top = values.max(axis=axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.exp(values - top).sum(axis=axis))


def entropy(probs: np.ndarray) -> np.ndarray:
    """Entropy over the last axis, in nats; 0 log 0 is 0."""
    return -(probs * np.log(np.maximum(probs, np.finfo(np.float64).tiny))).sum(axis=-1)


@dataclass(frozen=True, eq=False)
class Predictions:
    """What members say about N samples; everything derived is computed once, when first asked for.

    Attributes:
        logits: (M, N, C) float64, checked.
    """

    logits: np.ndarray

    @classmethod
    def of(cls, logits: Any, what: str = "logits") -> Predictions:
        """From (N, C) or (M, N, C) logits, numpy or torch; predictions pass through.

        Raises:
            MetricError: see `check_logits`.
        """
        return logits if isinstance(logits, Predictions) else cls(check_logits(logits, what))

    @property
    def members(self) -> int:
        return self.logits.shape[0]

    @property
    def classes(self) -> int:
        return self.logits.shape[2]

    def __len__(self) -> int:
        return self.logits.shape[1]

    @cached_property
    def log_probs(self) -> np.ndarray:
        """Each member's log probabilities, (M, N, C)."""
        return log_softmax(self.logits)

    @cached_property
    def member_probs(self) -> np.ndarray:
        """Each member's probabilities, (M, N, C)."""
        return np.exp(self.log_probs)

    @cached_property
    def probs(self) -> np.ndarray:
        """The ensemble's probabilities: the mean over members, (N, C)."""
        return self.member_probs.mean(axis=0)

    @cached_property
    def predicted(self) -> np.ndarray:
        """The ensemble's class, (N,); a tie goes to the lower class index."""
        return self.probs.argmax(axis=-1)

    @cached_property
    def member_predicted(self) -> np.ndarray:
        """Each member's class, (M, N)."""
        return self.logits.argmax(axis=-1)

    @cached_property
    def votes(self) -> np.ndarray:
        """How many members predict each class, (N, C)."""
        counts = np.zeros((len(self), self.classes))
        for predicted in self.member_predicted:
            counts[np.arange(len(self)), predicted] += 1
        return counts

    @cached_property
    def confidence(self) -> np.ndarray:
        """The ensemble's top probability, (N,)."""
        return np.minimum(self.probs.max(axis=-1), 1.0)

    @cached_property
    def doubt(self) -> np.ndarray:
        """1 - confidence, (N,), summed over the other classes: exact where 1 - confidence would round to 0."""
        rest = self.probs.copy()
        np.put_along_axis(rest, self.predicted[:, None], 0.0, axis=-1)
        return rest.sum(axis=-1)

    @cached_property
    def mutual_information(self) -> np.ndarray:
        """H(mean p) - mean H(p_m) a sample, (N,), in nats.

        Values under 1e-12 are rounding noise and become 0, so that equal members tie exactly.
        """
        gain = entropy(self.probs) + (self.member_probs * self.log_probs).sum(axis=-1).mean(axis=0)
        return np.where(gain < 1e-12, 0.0, gain)

    def correct(self, labels: np.ndarray) -> np.ndarray:
        """1.0 where the ensemble is right, (N,)."""
        return (self.predicted == labels).astype(np.float64)

    def surprise(self, labels: np.ndarray) -> np.ndarray:
        """-log of the mean probability of the true class, (N,): finite even where that probability underflows."""
        index = np.broadcast_to(labels[None, :, None], (self.members, len(self), 1))
        true = np.take_along_axis(self.log_probs, index, axis=-1)[..., 0]  # (M, N)
        return np.log(self.members) - logsumexp(true, axis=0)

    def squared_error(self, labels: np.ndarray) -> np.ndarray:
        """Sum over classes of (p - y)^2, (N,)."""
        true = np.take_along_axis(self.probs, labels[:, None], axis=-1)[:, 0]
        # the true class's term is taken out of the sum of squares, not subtracted after: no cancellation
        rest = self.probs.copy()
        np.put_along_axis(rest, labels[:, None], 0.0, axis=-1)
        return (rest**2).sum(axis=-1) + (1.0 - true) ** 2


def _checked(logits: Any, labels: Any) -> tuple[Predictions, np.ndarray]:
    predictions = Predictions.of(logits)
    return predictions, check_labels(labels, len(predictions), predictions.classes)


def accuracy(logits: Any, labels: Any) -> float:
    """Share of samples whose most probable class is the true one.

    Args:
        logits: (N, C) or (M, N, C).
        labels: (N,) class indices.

    Raises:
        MetricError: see `check_logits` and `check_labels`.

    Examples:
        >>> accuracy([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1])
        0.6666666666666666
    """
    predictions, y = _checked(logits, labels)
    return float(predictions.correct(y).mean())


def nll(logits: Any, labels: Any) -> float:
    """Mean over samples of -log of the members' mean probability of the true class, in nats.

    Examples:
        >>> round(nll([[0.0, 0.0]], [1]), 6)  # log 2
        0.693147
    """
    predictions, y = _checked(logits, labels)
    return float(predictions.surprise(y).mean())


def brier(logits: Any, labels: Any) -> float:
    """Mean over samples of the sum over classes of (p - y)^2, 0 (best) to 2.

    Examples:
        >>> brier([[0.0, 0.0]], [1])  # (1/2)^2 + (1/2)^2
        0.5
    """
    predictions, y = _checked(logits, labels)
    return float(predictions.squared_error(y).mean())
