"""OOD scores by name, each defined for an ensemble of M members (M = 1 is a single model). Higher is more OOD.

Scores of probabilities use the mean probability over members. Scores of raw logits (max logit, energy) are the mean
over members of each member's own score: the published methods define them for one model only (fill-in).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hydra_core.errors import MetricError, UnknownNameError
from hydra_core.metrics.classification import Predictions, entropy, logsumexp


@dataclass(frozen=True)
class Score:
    """A way to tell unfamiliar samples.

    Attributes:
        label: as shown.
        about: what it measures and how an ensemble's is formed, one or two sentences.
        needs: "logits", or "features" (then it is fitted first: `metrics.fit_feature_score`).
        fn: Predictions -> (N,); None for scores of features.
        members_only: it is 0 for a single model, as it measures how members differ.
        source: where it comes from.
    """

    label: str
    about: str
    needs: Literal["logits", "features"] = "logits"
    fn: Callable[[Predictions], np.ndarray] | None = None
    members_only: bool = False
    source: str = ""


def _msp(p: Predictions) -> np.ndarray:
    return p.doubt


def _max_logit(p: Predictions) -> np.ndarray:
    return -p.logits.max(axis=-1).mean(axis=0)


def _energy(p: Predictions) -> np.ndarray:
    return -logsumexp(p.logits, axis=-1).mean(axis=0)


def _entropy(p: Predictions) -> np.ndarray:
    return entropy(p.probs)


def _mutual_information(p: Predictions) -> np.ndarray:
    return p.mutual_information


def _variation_ratio(p: Predictions) -> np.ndarray:
    return 1.0 - p.votes.max(axis=-1) / p.members


OOD_SCORES: dict[str, Score] = {
    "msp": Score(
        "1 - max probability",
        "One minus the top class of the members' mean probability. The default, as in the paper.",
        fn=_msp,
        source="Hendrycks and Gimpel, ICLR 2017",
    ),
    "max_logit": Score(
        "Max logit",
        "Minus the largest logit, averaged over members.",
        fn=_max_logit,
        source="Hendrycks et al., ICML 2022",
    ),
    "energy": Score(
        "Energy",
        "Minus the log of the summed exponentials of the logits, averaged over members.",
        fn=_energy,
        source="Liu et al., NeurIPS 2020",
    ),
    "entropy": Score(
        "Entropy",
        "Entropy of the members' mean probability, in nats: how undecided the ensemble is as a whole.",
        fn=_entropy,
    ),
    "mutual_information": Score(
        "Mutual information",
        "Entropy of the mean minus the mean of the members' entropies: how much the members disagree. "
        "Always 0 for a single model.",
        fn=_mutual_information,
        members_only=True,
        source="Houlsby et al., 2011",
    ),
    "variation_ratio": Score(
        "Variation ratio",
        "Share of members that do not vote for the most voted class. Coarse: M members give at most M values. "
        "Always 0 for a single model.",
        fn=_variation_ratio,
        members_only=True,
        source="Freeman, 1965",
    ),
    "mahalanobis": Score(
        "Mahalanobis distance",
        "Half the squared distance of the features to the nearest class mean, in units of the spread that all "
        "classes share. One fit a member, scores averaged.",
        needs="features",
        source="Lee et al., NeurIPS 2018",
    ),
    "knn": Score(
        "k-nearest neighbours",
        "Distance of the normalised features to the k-th nearest ID sample. One fit a member, scores averaged.",
        needs="features",
        source="Sun et al., ICML 2022",
    ),
    "vim": Score(
        "ViM",
        "How much of the features lies outside the space that ID samples span, as one more logit, against the energy. "
        "One fit a member, scores averaged.",
        needs="features",
        source="Wang et al., CVPR 2022",
    ),
}


def score_named(name: str) -> Score:
    """The registered score, or an error that lists what exists."""
    if name not in OOD_SCORES:
        raise UnknownNameError("OOD score", name, OOD_SCORES)
    return OOD_SCORES[name]


def ood_score(logits: Any, name: str = "msp") -> np.ndarray:
    """The OOD score of each sample, (N,) float64, higher is more OOD.

    Args:
        logits: (N, C) or (M, N, C), or Predictions.
        name: a score of logits in `OOD_SCORES`.

    Raises:
        UnknownNameError: there is no such score.
        MetricError: the score needs features, or the logits are not usable.

    Examples:
        >>> ood_score([[0.0, 0.0], [9.0, 0.0]]).round(4).tolist()
        [0.5, 0.0001]
    """
    score = score_named(name)
    if score.fn is None:
        raise MetricError(
            f"{score.label} is computed from features, not from logits",
            expected="one of " + ", ".join(n for n, s in OOD_SCORES.items() if s.fn),
            got=name,
            hint="Fit it with fit_feature_score and pass its values to evaluate_logits as `scores`.",
        )
    return score.fn(Predictions.of(logits))


def mcm_score(logits: Any, scale: float, temperature: float = 1.0) -> np.ndarray:
    """Maximum concept matching for zero-shot models, (N,) float64, higher is more OOD.

    One minus the top class of softmax(similarity / temperature), where similarities are cosines. A CLIP model's
    logits are its cosines times a scale of about 100, so its max-probability score (MSP) is the same at a
    temperature of 1/100: nearly one-hot. MCM's softer default of 1 keeps how well the best class fits.

    Args:
        logits: (N, C) or (M, N, C) logits of a zero-shot model, or Predictions. A bias shared by all classes
            (SigLIP) changes nothing.
        scale: what the logits' cosines were multiplied by (`view.info["logit_scale"]`).
        temperature: of the cosines. The softmax is averaged over members.

    Source: Ming et al., NeurIPS 2022.

    Raises:
        MetricError: a scale or temperature that is not positive, or unusable logits.

    Examples:
        >>> mcm_score([[30.0, 10.0]], scale=100.0).round(4).tolist()
        [0.4502]
    """
    if not scale > 0 or not temperature > 0:
        raise MetricError("Scale and temperature are positive", expected="numbers over 0", got=(scale, temperature))
    return _msp(Predictions.of(Predictions.of(logits).logits / (scale * temperature)))
