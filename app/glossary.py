"""The words of the dashboard, each explained once: tooltips and the glossary of Learn read the same text.

What the engine already says of its metrics and criteria is taken from there.
"""

from __future__ import annotations

from functools import cache

from app import cards, lab
from hydra_core.metrics.registry import METRICS

WORDS: dict[str, str] = {
    "head": "One of the parallel units inside a layer's attention. Each decides for itself which tokens to read and "
    "hands a short vector to the layer's output projection, which mixes all heads of the layer.",
    "layer": "One block of the transformer: attention, then a small network for each token (MLP). Layer 0 comes "
    "first.",
    "token": "What a transformer reads one by one: a square patch of an image, a piece of a word, or the class "
    "token.",
    "class token": "An extra token in front of the patches. The prediction of many models is read from it alone.",
    "attention map": "How one token spreads its attention over all tokens; the weights sum to 1. Choose the class "
    "token to see what the prediction is drawn from, or a patch to see what that patch looks at.",
    "attention rollout": "Attention of all layers multiplied along, with the residual path counted as half (Abnar "
    "and Zuidema, 2020): a rough picture of which patches reach a token at the end.",
    "effect on the answer": "KL divergence from the prediction with the head to the prediction without it, in nats; "
    "0 means that the head changes nothing. Size of its output is the length (L2) of what the head hands on at the "
    "class token, or on average over tokens.",
    "pruning": "Removing whole heads. A removed head's slice at the input of the output projection is zero, which is "
    "the same as cutting its weights out. MLPs are never pruned.",
    "mask": "Which heads are kept and which are removed: one yes or no a head.",
    "member": "One pruned copy of the model inside an ensemble.",
    "plan": "The masks of all members. It stands in the address of the page.",
    "Hydra Ensemble": "Several pruned copies of one model, fused into a single network. The prediction is the mean "
    "of the members' probabilities (arXiv 2510.18358).",
    "fusing": "Running all members as one network: members lie side by side, attention never crosses from one to "
    "another. Without separate fine-tuning the result is exactly that of the members one after another.",
    "shared trunk": "The first layers, in which all members keep the same heads, run once for all of them. Exact, "
    "and the later the first difference, the cheaper.",
    "deep ensemble": "Several models trained from different seeds, averaged. The usual yardstick for uncertainty; "
    "costs as many times one model as it has members.",
    "circuit": "The heads that a search keeps because removing them would hurt the chosen figure most (HeadMap, made "
    "to keep uncertainty). CircAvg keeps the mean of accuracy and AUROC.",
    "confidence": "Probability of the predicted class.",
    "calibration": "Whether confidence keeps its word: of all answers given with 80 %, 80 % should be right.",
    "reliability diagram": "Accuracy over confidence, bin by bin. Bars below the diagonal: overconfident. Above: "
    "underconfident. Empty bins say nothing.",
    "in-distribution (ID)": "Samples of the kinds that the model was trained on.",
    "out-of-distribution (OOD)": "Samples of kinds that the model was never taught. It should doubt them. Near OOD "
    "looks like the known classes, far OOD does not.",
    "OOD score": "How unlike the known the model finds a sample; by default 1 minus its confidence.",
    "validation and test": "Settings are chosen on validation samples. Test samples choose nothing; look at them "
    "last.",
    "shift": "Known classes seen in a new way, such as with noise or blur.",
    "Jaccard overlap": "Heads kept by both members over heads kept by at least one: 1 for equal members, 0 for none "
    "in common.",
    "latency": "Measured time for one batch. Unlike multiply-adds it depends on the machine and on how full it is.",
}  # fmt: skip


def help_of(word: str) -> str:
    """The explanation of a word, for a tooltip."""
    return WORDS[word]


@cache
def glossary() -> dict[str, dict[str, str]]:
    """All words by topic, sorted: heads and ensembles, figures, cost, criteria."""
    figures = {metric.label: metric.help for metric in METRICS.values()}
    costs = {card.label: card.help for card in cards.COST.values()}
    criteria = {criterion.label: criterion.about for criterion in lab.criteria().values()}
    topics = {"Words": WORDS, "Figures": figures, "Cost": costs, "Criteria: what makes a head matter": criteria}
    return {topic: dict(sorted(words.items(), key=lambda w: w[0].casefold())) for topic, words in topics.items()}
