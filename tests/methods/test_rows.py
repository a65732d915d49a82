"""Each row against the closed form at which it must equal the single model."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from hydra_core.errors import CheckpointError, ModelError, UnknownNameError, UnsupportedModel
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.methods.batch_ensemble import RankOneLinear, batch_ensemble
from hydra_core.methods.dropout import mc_dropout
from hydra_core.methods.ensembles import deep_ensemble, hydra, pruned, single, unfused
from hydra_core.methods.lora import lora_ensemble
from hydra_core.methods.packed import packed
from hydra_core.methods.temperature import Scaled
from hydra_core.metrics.classification import nll
from hydra_core.models.view import build_view
from hydra_core.training.loop import Recipe
from tests.methods.conftest import batch, tiny


def native() -> torch.Tensor:
    with torch.no_grad():
        return tiny().module(batch())


def plan() -> Plan:
    return Plan(tuple(HeadMask.random((4, 4, 4), 2, seed) for seed in range(3)))


EQUAL = {
    "single": (lambda: single(tiny()), 1),
    "deep ensemble of one model": (lambda: deep_ensemble([tiny()] * 3), 3),
    "mc dropout, p = 0": (lambda: mc_dropout(tiny(), p=0.0), 8),
    "batch ensemble, r = s = 1": (lambda: batch_ensemble(tiny()), 3),
    "lora, B = 0": (lambda: lora_ensemble(tiny()), 3),
    "hydra of full masks": (lambda: hydra(tiny(), Plan.full((4, 4, 4), 2)), 2),
    "pruned by a full mask": (lambda: pruned(tiny(), HeadMask.full((4, 4, 4))), 1),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equals_the_single_model_at_its_neutral_setting(name):
    make, members = EQUAL[name]
    method = make()
    expected = native().expand(members, -1, -1)
    torch.testing.assert_close(method.member_logits(batch()), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(method.predict_proba(batch()), native().softmax(-1), rtol=1e-10, atol=1e-10)


def test_unfused_equals_fused_without_fine_tuning():
    a, b = hydra(tiny(), plan()), unfused(tiny(), plan())
    torch.testing.assert_close(a.member_logits(batch()), b.member_logits(batch()), rtol=1e-10, atol=1e-10)


def test_pruned_equals_the_masked_model():
    mask = plan()[0]
    torch.testing.assert_close(pruned(tiny(), mask).member_logits(batch())[0], tiny()(batch(), mask))


def test_deep_ensemble_costs_three_times_single():
    cost = deep_ensemble([tiny(0), tiny(1), tiny(2)]).cost()
    assert (cost.parameter_ratio, cost.mac_ratio) == (3.0, 3.0)
    assert single(tiny()).cost().mac_ratio == 1.0


def test_eight_passes_cost_eight_times_the_blocks_but_hold_the_weights_once():
    cost = mc_dropout(tiny(), passes=8).cost()
    stem = 16 * 24 * 16  # tokens x width x pixels of a patch: before the first dropout, so run once
    assert cost.parameter_ratio == 1.0
    assert cost.macs == stem + 8 * (cost.single_macs - stem)


def test_passes_are_the_model_with_their_masks_written_in():
    method, x = mc_dropout(tiny(), passes=2, p=0.3, seed=1), batch(20)  # more than one part
    model = copy.deepcopy(tiny().module)
    places = [path for path, m in model.named_modules() if isinstance(m, nn.Dropout) and path.startswith("blocks.")]
    for turn in range(2):
        for i, path in enumerate(places):
            model.get_submodule(path).register_forward_hook(written_in(1_009 + i, turn, 0.3))
        for block in model.blocks:
            block.attn.fused_attn = False
        with torch.no_grad():
            torch.testing.assert_close(method.member_logits(x)[turn], model(x), rtol=1e-9, atol=1e-9)
        for path in places:
            model.get_submodule(path)._forward_hooks.clear()


def written_in(place: int, turn: int, p: float):
    def hook(module, inputs, output):
        draw = torch.rand(1, *output.shape[1:], generator=torch.Generator().manual_seed(place * 10_007 + turn))
        return output * (draw >= p) / (1 - p)

    return hook


def test_dropout_runs_where_blocks_form_no_chain():
    import timm

    torch.manual_seed(0)
    module = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, depths=(1, 1), num_heads=(2, 4), num_classes=5,
        in_chans=1,
    )  # fmt: skip
    view = build_view("swin", module.eval(), input_size=(1, 56, 56))
    x = torch.randn(3, 1, 56, 56)
    with torch.no_grad():
        torch.testing.assert_close(mc_dropout(view, p=0.0).member_logits(x)[7], view.module(x), rtol=1e-5, atol=1e-5)
    first, second = mc_dropout(view, p=0.3, passes=2).member_logits(x)
    assert not torch.allclose(first, second)


def test_deep_ensemble_refuses_other_classes():
    other = build_view("other", tiny(1).module, class_names=("x", "y"), input_size=(1, 16, 16))
    with pytest.raises(ModelError, match="same classes"):
        deep_ensemble([tiny(), other])


def test_dropout_passes_differ_repeat_by_seed_and_do_not_depend_on_the_batch():
    method, x = mc_dropout(tiny(), p=0.2, seed=3), batch()
    logits = method.member_logits(x)
    assert len({tuple(row.flatten().tolist()) for row in logits}) == 8
    assert torch.equal(logits, mc_dropout(tiny(), p=0.2, seed=3).member_logits(x))
    assert not torch.equal(logits, mc_dropout(tiny(), p=0.2, seed=4).member_logits(x))
    torch.testing.assert_close(logits[:, :2], method.member_logits(x[:2]), rtol=1e-10, atol=1e-10)


def test_dropout_reaches_attention_and_mlp_of_every_block_but_not_the_shared_model():
    method = mc_dropout(tiny(), p=0.2)
    names = [name for name, m in method.net.named_modules() if type(m).__name__ == "FixedDropout"]
    for block in range(3):
        for place in ("attn.attn_drop", "attn.proj_drop", "mlp.drop1", "mlp.drop2"):
            assert f"rows.net.blocks.{block}.block.{place}" in names
    assert not any(type(m).__name__ == "FixedDropout" for m in tiny().module.modules())


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_dropout_refuses_shares_out_of_range(p):
    with pytest.raises(ModelError, match="out of range"):
        mc_dropout(tiny(), p=p)


def test_rank_one_linear_is_the_formula():
    torch.manual_seed(0)
    layer = RankOneLinear(torch.nn.Linear(4, 3).double(), 2)
    with torch.no_grad():
        for p in (layer.r, layer.s, layer.b):
            p.normal_()
    x = torch.randn(2 * 5, 7, 4, dtype=torch.float64)
    for m in range(2):
        weight = layer.s[m, :, None] * layer.weight * layer.r[m]  # W * (s r^T)
        expected = x[5 * m : 5 * m + 5] @ weight.T + layer.b[m]
        torch.testing.assert_close(layer(x)[5 * m : 5 * m + 5], expected)


def test_lora_equals_the_model_with_its_change_added_to_the_weight():
    method = lora_ensemble(tiny(), rank=2)
    with torch.no_grad():
        for name, p in method.net.named_parameters():
            if name.endswith(".b"):
                p.normal_(std=0.3)
    merged = copy.deepcopy(tiny().module)
    with torch.no_grad():
        for block, own in zip(merged.blocks, method.net.net.blocks, strict=True):
            layer = own.block.attn.qkv
            change = torch.cat([layer.b[1, part] @ layer.a[1, part] for part in range(3)])  # member 1
            block.attn.qkv.weight += change
    torch.testing.assert_close(method.member_logits(batch())[1], merged(batch()), rtol=1e-9, atol=1e-9)


def test_lora_trains_only_its_own_tensors_and_leaves_the_view_alone():
    before = {k: t.clone() for k, t in tiny().module.state_dict().items()}
    method = lora_ensemble(tiny(), rank=2)
    assert all(name.split(".")[-1] in ("a", "b") or ".head." in name for name in method.trainable)
    y = torch.arange(6) % 5
    loss = method.fit(batch(), y, Recipe(epochs=15, batch=6, lr=1e-2)).history
    assert loss[-1]["loss"] < loss[0]["loss"]
    assert all(torch.equal(t, before[k]) for k, t in tiny().module.state_dict().items())


@pytest.mark.parametrize("make", [lambda: batch_ensemble(tiny(), spread=0.2), lambda: packed(tiny())])
def test_state_restores_what_was_trained(make):
    trained, fresh = make(), make()
    trained.fit(batch(), torch.arange(6) % 5, Recipe(epochs=1, batch=3, lr=1e-2))
    assert not torch.equal(trained.member_logits(batch()), fresh.member_logits(batch()))
    fresh.load(trained.state())
    assert torch.equal(trained.member_logits(batch()), fresh.member_logits(batch()))


def test_load_names_what_does_not_fit():
    method = batch_ensemble(tiny())
    with pytest.raises(CheckpointError, match="nothing"):
        method.load(method.state() | {"nothing": torch.zeros(1)})


def test_single_has_nothing_to_train():
    with pytest.raises(ModelError, match="nothing to train"):
        single(tiny()).fit(batch(), torch.arange(6) % 5, Recipe(epochs=1))


def test_packed_groups_never_mix():
    net, x = packed(tiny(), members=2, alpha=2.0).net, batch(3)
    with torch.no_grad():
        before = net(x)
        for p in net.parameters():  # disturb member 1 wherever members have their own row
            if p.shape[0] == 2:
                p[1] += 0.5
            elif p.shape[0] % 2 == 0:
                p[len(p) // 2 :] += 0.5
        after = net(x)
    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1])


def test_packed_gradients_of_one_member_touch_its_own_weights_only():
    net = packed(tiny(), members=3).net
    net(batch(3))[2].sum().backward()
    for name, p in net.named_parameters():
        own = p.grad.reshape(3, -1)
        assert not own[:2].any(), name


def test_packed_members_differ_and_refuse_other_models():
    logits = packed(tiny(), members=3, seed=1).member_logits(batch())
    assert not torch.allclose(logits[0], logits[1])
    with pytest.raises(ModelError, match="width"):
        packed(tiny(), members=3, alpha=0.1)
    plain = build_view("plain", tiny(0).module.blocks, input_size=(17, 24))
    with pytest.raises(UnsupportedModel, match="packed"):
        packed(plain)


# -- scaling after training --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["temperature", "vector"])
@pytest.mark.parametrize("make", [lambda: single(tiny()), lambda: hydra(tiny(), plan())], ids=["single", "hydra"])
def test_scaling_lowers_the_validation_nll_of_any_row_at_its_cost(make, kind):
    method, x = make(), batch(40)
    y = np.arange(40) % 5
    logits = method.member_logits(x)
    scaled = Scaled(method, logits, y, kind)
    assert nll(scaled.member_logits(x), y) < nll(logits, y)
    assert scaled.cost() == method.cost()


def test_temperature_leaves_the_accuracy_of_single_unchanged():
    method, x = single(tiny()), batch(40)
    scaled = Scaled(method, method.member_logits(x), np.arange(40) % 5)
    assert torch.equal(scaled.predict_proba(x).argmax(-1), method.predict_proba(x).argmax(-1))
    assert scaled.scaling.temperature != 1


def test_scaling_refuses_unknown_kinds():
    with pytest.raises(UnknownNameError, match="scaling"):
        Scaled(single(tiny()), native(), np.arange(6) % 5, "matrix")
