"""The demo CLIP: its tokenizer against open_clip's, its captions against the pixels, its weights against their card."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from hydra_core.data.demo import CLASS_NAMES, load_fashion
from hydra_core.data.sets import SampleSet
from hydra_core.errors import CheckpointError
from hydra_core.heads.mask import HeadMask
from hydra_core.models import demo_clip
from hydra_core.models.demo import load_demo
from hydra_core.models.load import list_models, load_model
from hydra_core.models.view import ModelView
from hydra_core.models.zero_shot import library_templates, with_classes, zero_shot_parts
from hydra_core.training import captions
from hydra_core.training import demo_clip as training

open_clip = pytest.importorskip("open_clip")


@pytest.fixture(scope="module")
def view() -> ModelView:
    return load_model("demo/fashion-clip")


def facts(n: int = 200) -> tuple[SampleSet, np.ndarray]:
    samples = load_fashion().val.sample(n)
    return samples, captions.thirds_of(captions.measure(samples.inputs))


# -- the tokenizer ---------------------------------------------------------------------------


def test_known_words_are_read_as_by_the_whole_tokenizer() -> None:
    short: Any = demo_clip.demo_tokenizer()
    whole = open_clip.SimpleTokenizer()
    texts = [t.replace("{}", n) for n in CLASS_NAMES for t in library_templates()["ImageNet, 80 sentences"]]
    texts += sorted(captions.vocabulary())
    for text in texts:
        assert [short.decoder[i] for i in short.encode(text)] == [whole.decoder[i] for i in whole.encode(text)]


@pytest.mark.parametrize("word", ["trousers", "sneaker", "a", "jpeg", "sandal"])
def test_merges_are_those_that_the_tokenizer_makes(word: str) -> None:
    whole = open_clip.SimpleTokenizer()
    made = training.merges_of(word, whole.bpe_ranks)
    parts = [*word[:-1], word[-1] + "</w>"]
    assert len(whole.bpe(word).split()) <= len(parts) - len(made)
    assert "".join(made[-1]) in whole.bpe(word).split() if made else len(parts) == 1


def test_any_text_has_tokens_and_comes_back() -> None:
    tokenizer: Any = demo_clip.demo_tokenizer()
    for text in ("sandal", "ünï 猫", "🧥", "coat"):
        assert tokenizer.decode(tokenizer.encode(text)).strip() == text


# -- the captions ----------------------------------------------------------------------------


def test_held_out_classes_are_in_no_caption() -> None:
    words = captions.vocabulary()
    assert not words & {"coat", "coats", "jacket", "parka", "sandal", "sandals", "flipflop", "slipper"}
    assert set(captions.NOUNS) == set(CLASS_NAMES)


def test_every_caption_is_true_of_its_image_and_of_others_of_its_kind() -> None:
    samples, thirds = facts()
    drawn = captions.draw(samples.labels, thirds, captions.sentences(), np.random.default_rng(0))  # type: ignore[arg-type]
    true = drawn.true_of(samples.labels, thirds)  # type: ignore[arg-type]
    assert true.diagonal().all()
    for i, text in enumerate(drawn.texts):
        for a, (low, high) in enumerate(captions.ATTRIBUTES.values()):
            said = drawn.claims[i, a]
            assert said in (-1, 0, 2)
            if said >= 0:
                assert any(f"{word} " in text for word in (low, high)[said // 2])
    j = int(np.flatnonzero(drawn.claims[:, 0] == 0)[0])  # a caption that says "dark"
    assert not true[thirds[:, 0] != 0, j].any()
    assert not true[~drawn.classes[j][samples.labels], j].any()


def test_captions_repeat_by_seed() -> None:
    samples, thirds = facts(40)
    one, two, other = (
        captions.draw(samples.labels, thirds, captions.sentences(), np.random.default_rng(seed)).texts  # type: ignore[arg-type]
        for seed in (0, 0, 1)
    )
    assert one == two != other


def test_pixels_by_hand() -> None:
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 4:18, 10:17] = 100  # 14 x 7 pixels
    image[0, 4:18, 16] = 200  # the last column
    brightness, width, size, texture = captions.measure(image)[0]
    assert brightness == pytest.approx((14 * 6 * 100 + 14 * 200) / (14 * 7))
    assert width == pytest.approx(7 / 28)
    assert size == pytest.approx(98 / 784)
    assert texture == pytest.approx(14 * 100 / 98)
    assert captions.measure(np.zeros((1, 28, 28), np.uint8))[0].tolist() == [0, 0, 0, 0]


def test_thirds_are_even() -> None:
    thirds = captions.thirds_of(np.arange(300.0)[:, None])
    assert np.bincount(thirds[:, 0]).tolist() == [100, 100, 100]


# -- training --------------------------------------------------------------------------------


def test_the_loss_is_cross_entropy_where_one_caption_is_true() -> None:
    scores = torch.randn(5, 5, dtype=torch.float64)
    want = F.cross_entropy(scores, torch.arange(5))
    torch.testing.assert_close(training.soft_cross_entropy(scores, torch.eye(5, dtype=torch.float64)), want)
    true = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    part, log = scores[:3, :3], scores[:3, :3].log_softmax(1)
    by_hand = -((log[0, 0] + log[0, 1]) / 2 + log[2, 1]) / 2  # the middle row has no true caption
    torch.testing.assert_close(training.soft_cross_entropy(part, true), by_hand)


def test_blocks_of_the_demo_vit_are_carried_over_exactly() -> None:
    vit: Any = load_demo("fashion-vit").module
    clip: Any = demo_clip.demo_clip_module(600)
    training.warm_start(clip.visual, load_fashion().val)
    x = torch.randn(2, 50, 96)
    for own, other in zip(clip.visual.transformer.resblocks.double().eval(), vit.blocks, strict=True):
        own.ln_1.eps, own.ln_2.eps = other.norm1.eps, other.norm2.eps  # 1e-5 here, 1e-6 there: all that differs
        want = other.double()(x.double())
        torch.testing.assert_close(own(x.double()), want, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(clip.visual.ln_post.weight, vit.norm.weight)


def test_a_few_steps_learn_which_caption_belongs_to_which_image() -> None:
    torch.manual_seed(0)
    samples, thirds = facts(64)
    tokenizer: Any = demo_clip.demo_tokenizer()
    pairs = training.Pairs(demo_clip.demo_clip_module(tokenizer.vocab_size), tokenizer)
    rows = torch.from_numpy(np.column_stack([samples.labels, thirds]).astype(np.int64))
    x = demo_clip.prepare_grey(samples)
    optimizer = torch.optim.AdamW(pairs.parameters(), lr=2e-3)
    losses = []
    for _ in range(25):
        loss = pairs.loss(pairs(x), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3


def test_noise_keeps_start_end_and_padding() -> None:
    tokenizer: Any = demo_clip.demo_tokenizer()
    pairs = training.Pairs(demo_clip.demo_clip_module(tokenizer.vocab_size), tokenizer)
    tokens = tokenizer(["a photo of a boot", "a bag"] * 200)
    torch.manual_seed(0)
    noisy = pairs.noisy(tokens)
    fixed = (tokens == 0) | (tokens >= tokenizer.sot_token_id)
    assert torch.equal(noisy[fixed], tokens[fixed])
    assert 0.01 < float((noisy != tokens)[~fixed].float().mean()) < 0.06
    assert int(noisy[~fixed].max()) < tokenizer.sot_token_id


# -- the stored model ------------------------------------------------------------------------


def test_it_is_listed_small_and_says_what_it_is(view: ModelView) -> None:
    assert "demo/fashion-clip" in list_models("demo")
    assert list_models("demo")[0] == "demo/fashion-vit", "the default stays"
    assert view.shape == (8,) * 6
    assert zero_shot_parts(view)[1].view.shape == (4, 4, 4)
    assert view.class_names == CLASS_NAMES
    files = (demo_clip.WEIGHTS, demo_clip.MERGES, demo_clip.CARD)
    assert sum(file.stat().st_size for file in files) < 3 * 2**20
    assert view.info["words"] == sorted(captions.vocabulary())


def test_all_kept_is_open_clips_own_answer_and_a_mask_bites(view: ModelView) -> None:
    tower: Any = zero_shot_parts(view)[1]
    x = view.inputs(load_fashion().val.sample(16))
    weights = open_clip.build_zero_shot_classifier(tower.model, tower.tokenize, CLASS_NAMES, ["a photo of a {}."])
    with torch.no_grad():
        want = tower.model.logit_scale.exp() * tower.model.encode_image(x, normalize=True) @ weights
    torch.testing.assert_close(view(x), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(view(x, HeadMask.full(view.shape)), want, rtol=1e-4, atol=1e-4)
    assert float((view(x, HeadMask.full(view.shape).prune(5, 0)) - want).abs().max()) > 1e-3


def test_preprocessing_is_open_clips_transform_of_the_models_config(view: ModelView) -> None:
    from open_clip.transform import PreprocessCfg, image_transform_v2

    tower: Any = zero_shot_parts(view)[1]
    own = image_transform_v2(PreprocessCfg(**tower.model.visual.preprocess_cfg), is_train=False)
    samples = load_fashion().val.sample(5)
    want = torch.stack([own(Image.fromarray(image).convert("RGB")) for image in samples.inputs])
    torch.testing.assert_close(view.inputs(samples), want, rtol=1e-5, atol=1e-5)


def test_the_card_holds_what_the_stored_weights_reach(view: ModelView) -> None:
    card = json.loads(demo_clip.CARD.read_text(encoding="utf-8"))
    val = load_fashion().val
    logits = training.logits(view.module, view.inputs(val))
    accuracy = float((logits.argmax(-1) == val.labels).mean())
    assert accuracy == pytest.approx(card["val"]["accuracy"], abs=2e-3)
    assert accuracy > 0.84
    assert {"val", "test", "recipe", "seconds", "command", "licence", "origin"} <= card.keys()


def test_synonyms_mean_nearly_the_same(view: ModelView) -> None:
    val = load_fashion().val.sample(400)
    other = with_classes(view, [captions.NOUNS[name][1] for name in CLASS_NAMES], ["a picture of a {}."])
    x = view.inputs(val)
    agree = float((view(x).argmax(-1) == other(x).argmax(-1)).float().mean())
    assert agree > 0.85


def test_missing_files_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(demo_clip, "WEIGHTS", tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match=r"none\.safetensors") as found:
        demo_clip.load_demo_clip()
    assert demo_clip.COMMAND in str(found.value)
    with pytest.raises(CheckpointError, match=r"none\.gz"):
        demo_clip.demo_tokenizer(tmp_path / "none.gz")


def test_damaged_weights_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    file = tmp_path / "bad.safetensors"
    file.write_bytes(b"no safetensors")
    monkeypatch.setattr(demo_clip, "WEIGHTS", file)
    with pytest.raises(CheckpointError, match="damaged"):
        demo_clip.load_demo_clip()
