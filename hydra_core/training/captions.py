"""Captions for Fashion-MNIST: synonyms of the class, what can be measured on the pixels, and sentences around them.

"coat" and "sandal", the held-out classes, never appear, nor does any other word for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hydra_core.data.demo import CLASS_NAMES
from hydra_core.models.text_tower import words_of

NOUNS: dict[str, tuple[str, ...]] = {
    "t-shirt": ("t-shirt", "tee", "tee shirt", "short-sleeved top", "top with short sleeves"),
    "trouser": ("trouser", "trousers", "pants", "pair of trousers", "pair of pants", "slacks"),
    "pullover": ("pullover", "sweater", "jumper", "knitted pullover", "sweatshirt"),
    "dress": ("dress", "gown", "frock", "one-piece dress"),
    "shirt": ("shirt", "blouse", "button-up shirt", "shirt with buttons"),
    "sneaker": ("sneaker", "trainer", "running shoe", "sports shoe", "gym shoe"),
    "bag": ("bag", "handbag", "purse", "satchel", "bag with a handle"),
    "ankle boot": ("ankle boot", "boot", "bootie", "boot with a heel"),
}
BROADER: dict[str, tuple[str, ...]] = {  # words that are true of several classes
    "footwear": ("sneaker", "ankle boot"),
    "shoe": ("sneaker", "ankle boot"),
    "top": ("t-shirt", "pullover", "shirt"),
    "garment": ("t-shirt", "trouser", "pullover", "dress", "shirt"),
    "piece of clothing": ("t-shirt", "trouser", "pullover", "dress", "shirt"),
    "accessory": ("bag",),
}
# attribute -> words for its lower and its upper third on the training images
ATTRIBUTES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "brightness": (("dark", "dim", "black", "dark grey"), ("bright", "light", "white", "pale")),
    "width": (("narrow", "slim", "thin"), ("wide", "broad")),
    "size": (("small", "little"), ("large", "big")),
    "texture": (("plain", "smooth", "simple"), ("patterned", "textured", "busy")),
}
SENTENCES: tuple[str, ...] = (
    "{}",
    "a {}",
    "the {}",
    "a photo of a {}.",
    "a photo of the {}.",
    "a grey photo of a {}.",
    "a picture of a {}.",
    "a tiny picture of a {}",
    "an image of a {}.",
    "this is a {}.",
    "a {} from a shop",
    "a {} in a catalogue",
    "a {} on a black background",
    "fashion: {}",
    "one {}, seen from the side",
    "a product photo of a {}.",
)
BROADER_SHARE, BARE_SHARE, PAIR_SHARE = 0.08, 0.5, 0.15
INK = 25  # grey levels above which a pixel belongs to the thing


@dataclass(frozen=True)
class Captions:
    """Texts and what each of them claims.

    Attributes:
        texts: N captions.
        classes: (N, C) bool: the classes that the noun is true of.
        claims: (N, A) int8: 0 or 2 where the lower or the upper third of an attribute is named, -1 where nothing is.
    """

    texts: list[str]
    classes: np.ndarray
    claims: np.ndarray

    def true_of(self, labels: np.ndarray, thirds: np.ndarray) -> np.ndarray:
        """(N images, N captions) bool: whether a caption is true of an image with this label and these thirds."""
        claims = self.claims[None]  # (1, N, A)
        said = (claims < 0) | (claims == thirds[:, None])  # (N images, N captions, A)
        return self.classes[:, labels].T & said.all(-1)


def sentences() -> tuple[str, ...]:
    """Sentences of training: ours, and every second one of open_clip's ImageNet list without an attribute's word.

    The others stay unseen, so that the page's longer lists hold sentences that the model never read.
    """
    import open_clip

    own = {word for pair in ATTRIBUTES.values() for words in pair for word in words}
    theirs = [template("{}") for template in open_clip.OPENAI_IMAGENET_TEMPLATES[::2]]
    return SENTENCES + tuple(text for text in theirs if not own & set(text.split()))


def measure(images: np.ndarray) -> np.ndarray:
    """Brightness, width, size and texture of grey images (N, H, W) uint8 as (N, 4) float64.

    Mean grey level of the thing, share of columns and of pixels that it fills, mean step between neighbours on it.
    """
    x = images.astype(np.float64)
    thing = images > INK
    area = np.maximum(thing.sum((1, 2)), 1)
    steps = np.abs(np.diff(x, axis=2)) * (thing[:, :, 1:] & thing[:, :, :-1])
    return np.stack(
        [
            (x * thing).sum((1, 2)) / area,
            thing.any(1).mean(1),
            thing.mean((1, 2)),
            steps.sum((1, 2)) / area,
        ],
        axis=1,
    )


def thirds_of(measured: np.ndarray) -> np.ndarray:
    """Which third of all images each falls into, by attribute: (N, A) int8 of 0, 1 and 2."""
    edges = np.quantile(measured, [1 / 3, 2 / 3], axis=0)  # (2, A)
    return ((measured > edges[0]).astype(np.int8) + (measured > edges[1])).astype(np.int8)


def draw(labels: np.ndarray, thirds: np.ndarray, frames: tuple[str, ...], rng: np.random.Generator) -> Captions:
    """One caption an image, true of it.

    Args:
        labels, thirds: class numbers (N,) and `thirds_of` (N, A).
        frames: sentences with "{}".
    """
    texts, classes = [], np.zeros((len(labels), len(CLASS_NAMES)), bool)
    claims = np.full((len(labels), len(ATTRIBUTES)), -1, np.int8)
    for i, (label, third) in enumerate(zip(labels.tolist(), thirds, strict=True)):
        noun, of = _noun(CLASS_NAMES[label], rng)
        classes[i, [CLASS_NAMES.index(name) for name in of]] = True
        words = []
        for a in _attributes(third, rng):
            claims[i, a] = third[a]
            words.append(_one_of(list(ATTRIBUTES.values())[a][third[a] // 2], rng))
        texts.append(_one_of(frames, rng).replace("{}", " ".join([*words, noun])))
    return Captions(texts, classes, claims)


def _noun(name: str, rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """A word for a class and the classes that it is true of."""
    broader = [word for word, of in BROADER.items() if name in of]
    if broader and rng.random() < BROADER_SHARE:
        word = _one_of(broader, rng)
        return word, BROADER[word]
    return (name if rng.random() < 0.3 else _one_of(NOUNS[name], rng)), (name,)


def _attributes(third: np.ndarray, rng: np.random.Generator) -> list[int]:
    """None, one or two of the attributes that stand out."""
    draw = rng.random()
    count = 0 if draw < BARE_SHARE else 2 if draw > 1 - PAIR_SHARE else 1
    return rng.permutation(np.flatnonzero(third != 1))[:count].tolist()


def _one_of(options: Iterable[str], rng: np.random.Generator) -> str:
    options = list(options)
    return options[int(rng.integers(len(options)))]


def vocabulary() -> set[str]:
    """Every word of every caption that can be drawn."""
    attributes = [word for pair in ATTRIBUTES.values() for words in pair for word in words]
    texts = [*sentences(), *(n for nouns in NOUNS.values() for n in nouns), *NOUNS, *BROADER, *attributes]
    return {word for text in texts for word in words_of(text)}
