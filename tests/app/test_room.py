"""A head's room: figures against the native model with the head's columns zeroed by hand, and the page around them."""

import copy
import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from app import lab
from app.lab import room, stored
from app.lab.sources import Sample
from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import DataError, MaskError
from hydra_core.heads.mask import Plan
from hydra_core.heads.scores import CRITERIA, score_heads
from tests.app.test_pages import DATA, FULL, MODEL, SHAPE, settle, texts, visit

HEAD = (3, 7)


@pytest.fixture(scope="module")
def inputs():
    """All samples of the pages, prepared."""
    return lab.model(MODEL).inputs(*lab.sample(DATA).sets.values())


@pytest.fixture(scope="module")
def natives(inputs):
    """Native logits in float64 with all heads and with the columns of W_O that read the head set to zero by hand."""
    module = copy.deepcopy(lab.model(MODEL).module).double()
    with torch.inference_mode():
        whole = module(inputs.double())
        width = module.blocks[3].attn.head_dim
        module.blocks[3].attn.proj.weight.data[:, 7 * width : 8 * width] = 0
        return whole, module(inputs.double())


def test_top_samples_are_those_whose_native_prediction_moves_most(natives):
    p, q = (rows.log_softmax(-1) for rows in natives)
    effect = F.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    tops = lab.top_samples(MODEL, DATA, HEAD, count=5)
    best = effect.topk(5)
    assert [row.effect for row in tops] == pytest.approx(best.values.tolist(), rel=1e-3)
    rows = lab.sample_rows(DATA)
    assert [row.id for row in tops] == [rows[i].id for i in best.indices.tolist()]
    names = lab.model(MODEL).class_names
    assert tops[0].before == (names[p[best.indices[0]].argmax()], pytest.approx(p[best.indices[0]].max().exp().item()))
    assert tops[0].after[1] == pytest.approx(q[best.indices[0]].max().exp().item(), rel=1e-4)


def test_the_size_of_an_output_is_the_norm_at_the_projections_input(inputs):
    found = []
    module = lab.model(MODEL).module
    handle = module.blocks[3].attn.proj.register_forward_pre_hook(lambda m, args: found.append(args[0]))
    with torch.inference_mode():
        module(inputs)
    handle.remove()
    width = module.blocks[3].attn.head_dim
    norms = found[0][:, 0, 7 * width : 8 * width].double().norm(dim=-1)  # the class token
    tops = lab.top_samples(MODEL, DATA, HEAD, by="norm", count=4)
    assert [row.norm for row in tops] == pytest.approx(norms.topk(4).values.tolist(), rel=1e-5)


def test_a_sample_is_found_with_its_set_and_class():
    chosen = lab.sample(DATA)
    rows = lab.sample_rows(DATA)
    assert len(rows) == sum(map(len, chosen.sets.values())) == len({row.id for row in rows})
    assert {row.set for row in rows} == set(chosen.sets)
    one = lab.find_sample(chosen, rows[3].id)
    assert one.ids == (rows[3].id,)
    assert one.class_names[one.labels[0]] == rows[3].label
    with pytest.raises(DataError, match="no such sample"):
        lab.find_sample(chosen, "elsewhere/1")


def test_attention_is_the_softmax_of_the_layers_own_queries_and_keys():
    row = lab.sample_rows(DATA)[0]
    look = lab.attention(MODEL, DATA, row.id, 2)
    module = lab.model(MODEL).module
    x = lab.model(MODEL).inputs(lab.find_sample(lab.sample(DATA), row.id))
    found = []
    handle = module.blocks[2].attn.register_forward_pre_hook(lambda m, args: found.append(args[0]))
    with torch.inference_mode():
        module(x)
        attn = module.blocks[2].attn
        q, k, _ = attn.qkv(found[0]).reshape(1, 50, 3, 8, -1).permute(2, 0, 3, 1, 4)
        want = (q @ k.transpose(-2, -1) / attn.head_dim**0.5).softmax(-1)[0]
    handle.remove()
    np.testing.assert_allclose(look.maps, want.numpy(), atol=1e-6)
    np.testing.assert_allclose(look.rollout.sum(-1), 1, atol=1e-5)
    assert (look.lead, look.grid, look.tokens[0], look.tokens[-1]) == (
        1,
        (7, 7),
        "class token",
        "patch, row 6, column 6",
    )
    pixels = lab.find_sample(lab.sample(DATA), row.id).inputs[0].astype(float)
    np.testing.assert_allclose(look.picture, (pixels - pixels.min()) / np.ptp(pixels) * 255, atol=0.51)
    with pytest.raises(MaskError, match="no such layer"):
        lab.attention(MODEL, DATA, row.id, 6)


def test_an_image_is_shown_as_the_model_sees_it():
    x = torch.tensor([[[-1.0, 3.0]], [[-1.0, 1.0]], [[3.0, 1.0]]])
    assert room.as_seen(x).tolist() == [[[0, 0, 255], [255, 128, 128]]]
    assert room.as_seen(torch.zeros(1, 2, 2)).tolist() == [[0, 0], [0, 0]]


def test_standing_agrees_with_the_ranked_scores():
    table = lab.standing(MODEL, DATA, HEAD).set_index("Criterion")
    scores = lab.scores(MODEL, DATA, "loo_nll")
    better = sum(value > scores.values[3][7] for value in scores.flat)
    assert table.loc["Leave-one-out NLL", "Rank"] == better + 1
    assert table.loc["Leave-one-out NLL", "Score"] == scores.values[3][7]
    assert set(table["Of"]) == {48}


def test_the_room_is_of_a_head_that_exists():
    assert lab.without(MODEL, HEAD) == Plan((FULL.prune(3, 7),))
    with pytest.raises(MaskError):
        lab.without(MODEL, (6, 0))


# -- scores that the demo carries --------------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["taylor", "magnitude", "attention_entropy"])
def test_stored_scores_are_what_measuring_gives(criterion):
    chosen = lab.sample(DATA)
    kept = stored.stored_scores(MODEL, chosen, criterion)
    fresh = score_heads(lab.model(MODEL), chosen.id, criterion, ood=chosen.ood)
    np.testing.assert_allclose(kept.flat, fresh.flat, rtol=1e-4, atol=1e-6)
    assert kept.samples == fresh.samples
    assert (kept.low is None) == (fresh.low is None)


def test_every_criterion_is_stored_and_nothing_is_missing_on_the_demo():
    assert set(json.loads(stored.SCORES.read_text())["scores"]) == set(CRITERIA)
    assert lab.missing_criteria(MODEL, DATA) == []


def test_a_stored_leave_one_out_is_the_exact_change_of_the_report():
    before, after = (lab.report(MODEL, DATA, plan) for plan in (Plan.full(SHAPE), lab.without(MODEL, HEAD)))
    assert lab.scores(MODEL, DATA, "loo_nll").values[3][7] == pytest.approx(after.nll - before.nll, abs=1e-6)
    assert lab.scores(MODEL, DATA, "loo_ece").values[3][7] == pytest.approx(after.ece - before.ece, abs=1e-6)
    loss = lab.scores(MODEL, DATA, "loo_auroc_near").values[3][7]
    assert loss == pytest.approx(before.auroc_near - after.auroc_near, abs=1e-6)


def test_stored_logits_are_those_of_the_native_model(natives):
    found = stored.stored_rows("logits", MODEL, lab.sample(DATA), Plan.full(SHAPE)[0])
    np.testing.assert_allclose(found, natives[0], rtol=1e-4, atol=1e-4)  # float32 against float64


def test_stored_values_are_not_used_for_other_weights_samples_or_masks():
    chosen, full = lab.sample(DATA), Plan.full(SHAPE)[0]
    assert stored.stored_rows("logits", "demo/fashion-vit-s1", chosen, full) is None
    assert stored.stored_rows("logits", MODEL, Sample(chosen.id, chosen.ood, "val", "another key"), full) is None
    assert stored.stored_rows("logits", MODEL, chosen, full.prune(*HEAD)) is None
    assert stored.stored_scores("demo/fashion-vit-s1", chosen, "taylor") is None
    other = Sample(chosen.id, chosen.ood, "val", "another key")
    assert stored.stored_scores(MODEL, other, "taylor") is None
    assert lab.stored_hydra("demo/fashion-vit-s1", DATA) is None
    hydra = lab.stored_hydra(MODEL, DATA)
    assert len(hydra) > 1
    assert hydra.shape == SHAPE


# -- the page ----------------------------------------------------------------------------------------


def test_without_a_choice_there_is_no_room():
    at = visit("heads")
    assert at.button(key="heads/prune").disabled
    assert not any("The room of head" in header.value for header in at.subheader)


def test_a_heads_room_opens_from_the_address_and_says_what_goes_without_it():
    at = visit("heads", head="3.7")
    assert not at.error
    assert "The room of head 3.7" in [header.value for header in at.subheader]
    after = lab.report(MODEL, DATA, lab.without(MODEL, HEAD))
    figures = {metric.label: metric.value for metric in at.metric}
    assert figures["NLL"] == f"{after.nll:.4f}"
    assert "It looks most at" in texts(at)
    rank = lab.standing(MODEL, DATA, HEAD).set_index("Criterion").loc["Taylor", "Rank"]
    assert any("Criterion" in t.value and rank in t.value["Rank"].tolist() for t in at.dataframe)


def test_controls_of_the_room_work():
    at = visit("heads", head="3.7")
    settle(at.selectbox(key="sample").set_value(lab.sample_rows(DATA)[-1].id).run())
    settle(at.selectbox(key="query").set_value(25).run())
    settle(at.segmented_control(key="by").set_value("norm").run())
    assert not at.error
    loudest = lab.top_samples(MODEL, DATA, HEAD, by="norm")[0]
    assert any("effect" in t.value and t.value["id"].iloc[0] == loudest.id for t in at.dataframe)
    settle(at.selectbox(key="head").set_value("5.0").run())
    assert "The room of head 5.0" in [header.value for header in at.subheader]


def test_the_room_opens_what_if_without_that_head():
    at = visit("heads", head="3.7")
    at.button(key="room/what_if").click().run()  # a test app shows the page it switched to until it is run again
    assert at.title[0].value == "What if"
    assert at.session_state["hydra/session"].plan == Plan((FULL.prune(3, 7),))


def test_chosen_heads_are_pruned_in_the_active_member_and_shown_in_what_if():
    at = visit("heads", plan=Plan((FULL, FULL.prune(0, 0))).text, member="1")
    at.session_state["heads/chosen"], at.session_state["heads/chosen_for"] = ((1, 2), (5, 3)), SHAPE
    at = settle(at.run())
    at.button(key="heads/prune").click().run()
    assert at.title[0].value == "What if"
    assert at.session_state["hydra/session"].plan == Plan((FULL, FULL.prune(0, 0).prune(1, 2).prune(5, 3)))


def test_a_model_without_stored_scores_is_scored_on_request():
    at = visit("heads", model="demo/fashion-vit-s1", head="0.1")
    assert "Not scored yet" in texts(at)
    assert lab.missing_criteria("demo/fashion-vit-s1", DATA)


def test_criteria_that_need_ood_are_not_asked_for_without_it():
    assert room._possible("taylor", False, set())
    assert not room._possible("separability", True, set())
    assert not room._possible("loo_auroc_near", True, {"far"})
    assert room._possible("loo_auroc_far", True, {"far"})


WORDS = ("[PAD]", "[CLS]", "[SEP]", "good", "bad", "boat", "film", "rain")


class Tokenizer:
    """The smallest one that text models accept: a word a token."""

    pad_token_id, model_max_length = 0, 16

    def __call__(self, texts, padding=False, return_tensors=None, **unused):
        rows = [[1, *(WORDS.index(word) for word in text.split()), 2] for text in texts]
        return {"input_ids": torch.tensor(rows) if return_tensors else rows}

    def convert_ids_to_tokens(self, ids):
        return [WORDS[i] for i in ids]


@pytest.fixture
def text_model(monkeypatch):
    """A tiny random BERT and texts of two words, known to the dashboard under names of this process."""
    hf = pytest.importorskip("transformers")
    from hydra_core.data.load import DATA as SETS
    from hydra_core.models.load import VIEWS
    from hydra_core.models.text_models import text_view

    torch.manual_seed(0)
    config = hf.BertConfig(vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                           num_labels=2, intermediate_size=16, max_position_embeddings=16,
                           attn_implementation="sdpa")  # fmt: skip
    view = text_view("yours/tiny-bert", hf.BertForSequenceClassification(config), Tokenizer())
    lines = [f"{a} {b}" for a in WORDS[3:] for b in WORDS[3:]]

    def texts_of(name, part, labels):
        ids = tuple(f"{name}/{i}" for i in range(len(part)))
        names = ("yes", "no") if labels is not None else ()
        shift = "id" if labels is not None else "far"
        return SampleSet(name, np.array(part, dtype=object), labels, ids, names, kind="text", shift=shift)

    val, test = (
        texts_of(n, part, np.arange(len(part)) % 2) for n, part in (("val", lines[:10]), ("test", lines[10:18]))
    )
    bundle = DataBundle("texts", val, test, ood_val={"odd": texts_of("odd", lines[18:], None)})
    monkeypatch.setitem(VIEWS, "yours/tiny-bert", view)
    monkeypatch.setitem(SETS, "yours/texts", lambda: bundle)
    return "yours/tiny-bert", "yours/texts"


def test_a_text_is_read_token_by_token(text_model):
    look = lab.attention(*text_model, "val/1", 1)
    assert look.tokens == ("0 [CLS]", "1 good", "2 bad", "3 [SEP]")
    assert (look.lead, look.grid, look.picture) == (0, None, None)
    assert look.maps.shape == (2, 4, 4)
    np.testing.assert_allclose(look.maps.sum(-1), 1, atol=1e-5)


def test_the_room_of_a_text_models_head_shows_tokens_and_texts(text_model):
    model, data = text_model
    at = visit("heads", model=model, data=data, head="1.0")
    assert not at.error
    assert not at.exception
    assert "The room of head 1.0" in [header.value for header in at.subheader]
    assert at.selectbox(key="query").options == list(lab.attention(model, data, top(text_model), 1).tokens)
    shown = next(t.value for t in at.dataframe if "text" in t.value)
    assert set(shown["text"]) <= {f"{a} {b}" for a in WORDS[3:] for b in WORDS[3:]}


def top(text_model):
    return lab.top_samples(*text_model, (1, 0), count=1)[0].id
