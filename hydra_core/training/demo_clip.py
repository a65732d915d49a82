"""Rebuilds the demo CLIP: `python -m hydra_core.training.demo_clip` trains it and writes assets/fashion-clip.*.

    --measure         train nothing: measure the stored weights again and write the figures
    --threads N       CPU threads

A run that was stopped goes on from its last epoch (a checkpoint lies in .scratch/; remove it to start anew).
The last digits of the weights depend on the number of threads and on the processor.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from hydra_core.data.demo import CLASS_NAMES, load_fashion, load_fashion_train
from hydra_core.data.sets import SampleSet
from hydra_core.metrics.calibration import ece
from hydra_core.metrics.classification import accuracy, nll, softmax
from hydra_core.metrics.ood import auroc
from hydra_core.metrics.scores import mcm_score
from hydra_core.models.demo import load_demo, prepare
from hydra_core.models.demo_clip import (
    CARD,
    COMMAND,
    MERGES,
    NAME,
    WEIGHTS,
    demo_clip_module,
    demo_tokenizer,
    load_demo_clip,
    prepare_grey,
)
from hydra_core.models.open_clip_models import library
from hydra_core.models.text_tower import DEFAULT_TEMPLATES, TextTower, words_of
from hydra_core.training import captions
from hydra_core.training.demo import SCRATCH, logits, rounded
from hydra_core.training.loop import Fit, fit
from hydra_core.training.recipe import Recipe

COMMON_MERGES = 1000  # of open_clip's list, so that any text has short pieces
LARGEST_SCALE = math.log(100.0)
NOISE = 0.03  # share of the tokens that training replaces by any other: unknown words shall not matter much
START = "fashion-vit"  # whose blocks the image tower starts from
CAPTIONS = 64  # drawn a batch of 128 images: most are true of several
LEG = Recipe(epochs=5, batch=128, lr=1e-3, shift=2, flip=True, ema=0.998)
# (share of patches dropped, recipe): quick on half of the patches, then on more of them, as the tower is used
LEGS = ((0.5, LEG), (0.25, replace(LEG, epochs=1, lr=7e-4, seed=1)))


class Pairs(nn.Module):
    """A CLIP in training: images -> unit features; `loss` draws a caption for each and compares all with all.

    Captions are drawn for the first CAPTIONS images only. One may be true of several images of a batch (eight
    classes!), so the target of an image is spread evenly over all captions that are true of it, and the other way
    round; an image that none is true of has no target.
    """

    def __init__(self, clip: Any, tokenizer: Any) -> None:
        super().__init__()
        self.clip, self.tokenizer, self.frames = clip, tokenizer, captions.sentences()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.clip.encode_image(x), dim=-1)

    def loss(self, images: torch.Tensor, facts: torch.Tensor) -> torch.Tensor:
        """Images (B, D), facts (B, 1 + A): class and thirds -> scalar. Draws from torch's generator."""
        label, thirds = facts[:, 0].numpy(), facts[:, 1:].numpy()
        rng = np.random.default_rng(int(torch.randint(0, 2**31, ())))
        drawn = captions.draw(label[:CAPTIONS], thirds[:CAPTIONS], self.frames, rng)
        texts = F.normalize(self.clip.encode_text(self.noisy(self.tokenizer(drawn.texts))), dim=-1)
        scores = self.clip.logit_scale.clamp(max=LARGEST_SCALE).exp() * images @ texts.T  # (B images, B captions)
        true = torch.from_numpy(drawn.true_of(label, thirds)).to(scores.dtype)
        return (soft_cross_entropy(scores, true) + soft_cross_entropy(scores.T, true.T)) / 2

    def noisy(self, tokens: torch.Tensor) -> torch.Tensor:
        """Some tokens replaced by any other of the vocabulary; start, end and padding stay."""
        end = self.tokenizer.eot_token_id
        inside = (tokens != 0) & (tokens != end) & (tokens != self.tokenizer.sot_token_id)
        swap = inside & (torch.rand(tokens.shape) < NOISE)
        return torch.where(swap, torch.randint(1, self.tokenizer.sot_token_id, tokens.shape), tokens)


def soft_cross_entropy(scores: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of rows (N, K) to the even spread over what is true in each; rows where nothing is are left out."""
    count = true.sum(1)
    rows = -(true * scores.log_softmax(1)).sum(1) / count.clamp(min=1)
    return rows.sum() / (count > 0).sum().clamp(min=1)


def warm_start(visual: Any, samples: SampleSet) -> None:
    """Let the image tower start from the demo ViT: same blocks, tokens, positions and last norm.

    The ViT has a convolutional stem where CLIP has one convolution a patch: that one is fitted to the stem's tokens by
    least squares on some training samples (its constant joins the positions), and training does the rest.
    """
    vit: Any = load_demo(START).module
    x = prepare(samples.sample(2000))
    with torch.no_grad():
        tokens = vit.patch_embed(x).double()  # (N, 49, width)
        patches = F.unfold(x, visual.conv1.kernel_size, stride=visual.conv1.stride).mT.double()  # (N, 49, 16)
        ones = torch.ones_like(patches[..., :1])
        fitted = torch.linalg.lstsq(torch.cat([patches, ones], -1).flatten(0, 1), tokens.flatten(0, 1)).solution
        kernel = fitted[:-1].T.unflatten(1, (1, *visual.conv1.kernel_size)) / 3  # three equal channels
        visual.conv1.weight.copy_(kernel.expand(-1, 3, -1, -1))
        visual.class_embedding.copy_(vit.cls_token[0, 0])
        visual.positional_embedding.copy_(vit.pos_embed[0])
        visual.positional_embedding[1:] += fitted[-1]
        visual.ln_post.load_state_dict(vit.norm.state_dict())
        for own, other in zip(visual.transformer.resblocks, vit.blocks, strict=True):
            own.load_state_dict(as_resblock(other.state_dict()))


def as_resblock(block: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a timm block under open_clip's names."""
    names = {"norm1": "ln_1", "norm2": "ln_2", "attn.qkv": "attn.in_proj", "attn.proj": "attn.out_proj",
             "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}  # fmt: skip
    out = {}
    for key, tensor in block.items():
        path, _, kind = key.rpartition(".")
        dot = "_" if path == "attn.qkv" else "."  # in_proj_weight is a parameter of its own
        out[f"{names[path]}{dot}{kind}"] = tensor
    return out


def write_merges() -> None:
    """The tokenizer's list: the first merges of open_clip's own, and those that captions and prompts need."""
    full = library().SimpleTokenizer()
    ranks = dict(full.bpe_ranks)
    prompts = [t("{}") for t in library().OPENAI_IMAGENET_TEMPLATES]
    words = captions.vocabulary() | {w for text in prompts for w in words_of(text)}
    used = {merge for word in words for merge in merges_of(word, ranks)}
    kept = sorted((m for m in ranks if m in used or ranks[m] < COMMON_MERGES), key=ranks.__getitem__)
    text = "\n".join(["#version: a part of open_clip's bpe_simple_vocab_16e6", *(" ".join(m) for m in kept)])
    MERGES.write_bytes(gzip.compress(text.encode(), mtime=0))


def merges_of(word: str, ranks: dict[tuple[str, str], int]) -> list[tuple[str, str]]:
    """The merges that byte-pair encoding makes on an ASCII word, in order."""
    parts, made = [*word[:-1], word[-1] + "</w>"], []
    while pairs := [pair for pair in itertools.pairwise(parts) if pair in ranks]:
        best = min(pairs, key=ranks.__getitem__)
        made.append(best)
        at = 0
        while at < len(parts) - 1:
            if (parts[at], parts[at + 1]) == best:
                parts[at : at + 2] = ["".join(best)]
            at += 1
    return made


def train() -> tuple[nn.Module, list[Fit]]:
    """All legs of the recipe; prints validation figures after each epoch."""
    data, samples = load_fashion(), load_fashion_train()
    tokenizer: Any = demo_tokenizer()
    torch.manual_seed(LEG.seed)
    pairs = Pairs(demo_clip_module(tokenizer.vocab_size, patch_drop=LEGS[0][0]), tokenizer)
    warm_start(pairs.clip.visual, samples)
    assert samples.labels is not None
    thirds = captions.thirds_of(captions.measure(samples.inputs))
    facts = torch.from_numpy(np.column_stack([samples.labels, thirds]).astype(np.int64))
    inputs = {s.name: prepare_grey(s) for s in (data.val, *data.ood_val.values())}

    def evaluate(module: nn.Module) -> dict[str, float]:
        clip: Any = module.clip
        features = TextTower(clip.encode_text, tokenizer).features(CLASS_NAMES, DEFAULT_TEMPLATES)
        scale = float(clip.logit_scale.exp())
        outputs = {name: scale * _features(module, x) @ features.numpy().T for name, x in inputs.items()}
        row = figures(outputs, data.val, scale)
        print({k: round(v, 4) for k, v in row.items()}, flush=True)
        return row

    SCRATCH.mkdir(exist_ok=True)
    images, done = prepare_grey(samples), []
    for leg, (drop, recipe) in enumerate(LEGS):
        pairs.clip.visual.patch_dropout.prob = drop
        file = SCRATCH / f"{NAME}-{leg}.pt"
        done.append(fit(pairs, images, facts, recipe, loss=pairs.loss, evaluate=evaluate, checkpoint=file))
    return pairs.clip, done


def _features(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    return torch.cat([module(part) for part in x.split(250)]).numpy()


def figures(outputs: dict[str, np.ndarray], samples: SampleSet, scale: float) -> dict[str, float]:
    """Accuracy, NLL, ECE (15 bins of equal width), and per OOD set the AUROC of MSP and of MCM."""
    out = outputs[samples.name]
    top = softmax(out).max(-1)
    row = {
        "accuracy": accuracy(out, samples.labels),
        "nll": nll(out, samples.labels),
        "ece": ece(top, out.argmax(-1) == samples.labels),
        "logit_scale": scale,
    }
    for name, other in outputs.items():
        if name != samples.name:
            row[f"{name}_msp"] = auroc(-top, -softmax(other).max(-1))
            row[f"{name}_mcm"] = auroc(mcm_score(out, scale), mcm_score(other, scale))
    return row


def measure_stored() -> dict[str, Any]:
    """Validation and test figures of the weights in assets/, with the prompt "a photo of a {}."."""
    view, data = load_demo_clip(), load_fashion()
    scale = float(view.info["logit_scale"])  # type: ignore[arg-type]
    found = {}
    for split, (samples, ood) in {"val": (data.val, data.ood_val), "test": (data.test, data.ood_test)}.items():
        outputs = {s.name: logits(view.module, view.inputs(s)) for s in (samples, *ood.values())}
        found[split] = rounded(figures(outputs, samples, scale))
    return found


def store(module: nn.Module) -> None:
    """Half-precision weights into assets/."""
    half = {k: t.half().contiguous() for k, t in module.state_dict().items()}
    save_file(half, WEIGHTS, metadata={"format": "pt", "licence": "MIT"})


def write_card(**facts: Any) -> None:
    """Put facts into assets/fashion-clip.json."""
    card = json.loads(CARD.read_text(encoding="utf-8")) if CARD.is_file() else {}
    CARD.write_text(json.dumps(card | COMMON | facts, indent=2) + "\n", encoding="utf-8")


COMMON: dict[str, Any] = {
    "licence": "MIT",
    "origin": f"trained by this project on Fashion-MNIST (MIT) and drawn captions: {COMMAND}; the image tower's blocks "
    f"started from demo/{START}, which had seen drawn outliers",
    "architecture": "open_clip CLIP: image tower 28 x 28, patch 4, width 96, 6 layers x 8 heads, MLP ratio 2; "
    "text tower width 64, 3 layers x 4 heads, context 32; a shared space of 64",
    "tokenizer": "open_clip's SimpleTokenizer over part of its own merges (fashion-clip-bpe.txt.gz)",
    "classes": list(CLASS_NAMES),
    "held_out": "coat and sandal are in no image and no caption of training",
    "conventions": "ECE: 15 bins of equal width on the top probability. AUROC: OOD positive; msp: 1 - top probability, "
    "mcm: the same with the logit scale taken away. Prompt: a photo of a {}. "
    "Validation figures chose the recipe.",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Rebuild the demo CLIP in assets/.")
    parser.add_argument("--measure", action="store_true", help="measure the stored weights, train nothing")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if not options.measure:
        write_merges()
        module, done = train()
        store(module)
        write_card(
            command=f"{COMMAND} --threads {options.threads}",
            recipe=[asdict(recipe) | {"patch_drop": drop} for drop, recipe in LEGS],
            training={"token_noise": NOISE, "captions_a_batch": CAPTIONS, "start": f"demo/{START}"},
            parameters=sum(p.numel() for p in module.parameters()),
            seconds=round(sum(leg.seconds for leg in done)),
            trained_on=f"CPU, {options.threads} threads, torch {torch.__version__}",
            history=[rounded(row) for leg in done for row in leg.history],
        )
    write_card(words=sorted(captions.vocabulary()), **measure_stored())


if __name__ == "__main__":
    main()
