"""Maps rebuilt from captured queries and keys must give the native output again; outputs must project to it."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch

from hydra_core.errors import MaskError, UnsupportedModel
from hydra_core.heads.attention_maps import (
    attention_maps,
    has_class_token,
    head_outputs,
    rollout,
    token_places,
    visit_attention,
)
from hydra_core.heads.mask import HeadMask
from hydra_core.models.view import build_view
from tests.fusion.conftest import variant


def native_outputs(view, x, index):
    """Input of the projection and output of one attention module, by plain hooks."""
    found = {}
    attention = view.module.get_submodule(view.layers[index].path)
    projection = view.module.get_submodule(view.layers[index].proj)
    handles = [
        projection.register_forward_pre_hook(lambda m, a: found.update(z=a[0])),
        attention.register_forward_hook(lambda m, a, o: found.update(out=o)),
    ]
    with torch.inference_mode():
        view.module(x)
    for handle in handles:
        handle.remove()
    return found["z"], found["out"]


@pytest.mark.parametrize("name", ["plain", "qk_norm", "registers", "no class token", "parallel things"])
def test_maps_times_values_through_the_projection_is_the_native_output(name):
    view, x = variant(name)
    for layer in range(len(view.layers)):
        seen = []
        visit_attention(
            view, x, lambda at, a, layer=layer, seen=seen: seen.append((a.map(), a.v)) if at == layer else None
        )
        (maps, values), (z, out) = seen[0], native_outputs(view, x, layer)
        torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps[..., 0]))
        heads = (maps @ values).transpose(1, 2).flatten(2)  # (B, H, T, d_h) -> (B, T, H * d_h)
        torch.testing.assert_close(heads, z)
        projection = view.module.get_submodule(view.layers[layer].proj)
        torch.testing.assert_close(projection(heads), out)
        torch.testing.assert_close(attention_maps(view, x, layer), maps)


@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "beit_base_patch16_224"])
def test_rotary_positions_and_biases_are_in_the_maps(name):
    torch.manual_seed(0)
    small = {"depth": 2, "embed_dim": 48, "num_heads": 4, "num_classes": 3, "img_size": 56}
    view = build_view(name, timm.create_model(name, **small).double(), input_size=(3, 56, 56))
    x = torch.randn(2, 3, 56, 56, dtype=torch.float64)
    seen = []
    visit_attention(view, x, lambda at, a: seen.append(a.map() @ a.v))
    for layer, heads in enumerate(seen):
        torch.testing.assert_close(heads.transpose(1, 2).flatten(2), native_outputs(view, x, layer)[0])


def test_modules_told_to_go_slowly_are_heard_too_and_stay_slow():
    view, x = variant("no embed class")
    want = attention_maps(view, x, 1)
    shadow = view.stages().model
    modules = [shadow.get_submodule(layer.path) for layer in view.layers]
    for module in modules:
        module.fused_attn = False
    try:
        torch.testing.assert_close(attention_maps(view, x, 1), want)
        assert not any(module.fused_attn for module in modules)
    finally:
        for module in modules:
            module.fused_attn = True


def test_windows_are_refused_by_name():
    view = build_view(
        "swin", timm.create_model("swin_tiny_patch4_window7_224", embed_dim=24, depths=(1, 1), num_heads=(2, 4)).eval()
    )
    with pytest.raises(UnsupportedModel, match=r"no attention maps for layers\.0\.blocks\.0\.attn"):
        attention_maps(view, torch.randn(1, 3, 224, 224), 0)


def test_masked_heads_change_later_maps_only():
    view, x = variant("plain")
    mask = HeadMask.full(view.shape).prune(1, 0)
    torch.testing.assert_close(attention_maps(view, x, 1, mask), attention_maps(view, x, 1))
    assert (attention_maps(view, x, 2, mask) - attention_maps(view, x, 2)).abs().max() > 1e-3
    with pytest.raises(MaskError, match="no such layer"):
        attention_maps(view, x, 3)


def test_rollout_is_the_product_of_half_skipped_means():
    view, x = variant("plain")
    want = torch.eye(17, dtype=torch.float64)
    for layer in range(3):
        want = (attention_maps(view, x, layer).mean(1) + torch.eye(17)) / 2 @ want
    torch.testing.assert_close(rollout(view, x), want)
    torch.testing.assert_close(rollout(view, x).sum(-1), torch.ones(4, 17, dtype=torch.float64))
    none = HeadMask.empty(view.shape)
    torch.testing.assert_close(rollout(view, x, none), torch.eye(17, dtype=torch.float64).expand(4, -1, -1))


def test_head_outputs_are_the_projections_input():
    view, x = variant("plain")
    got = head_outputs(view, x, chunk=3)
    for layer in range(3):
        z, _ = native_outputs(view, x, layer)
        torch.testing.assert_close(got[layer].flatten(1), z[:, 0])
    averaged = head_outputs(view, x, pool="mean")[2]
    torch.testing.assert_close(averaged.flatten(1), native_outputs(view, x, 2)[0].mean(1))
    gone = head_outputs(view, x, mask=HeadMask.full(view.shape).prune(0, 1))
    assert gone[0][:, 1].abs().max() == 0
    assert np.isclose(gone[0][:, 0], got[0][:, 0]).all()


def test_head_outputs_of_windows_are_means_over_all_windows():
    torch.manual_seed(0)
    model = timm.create_model("swin_tiny_patch4_window7_224", embed_dim=24, depths=(1, 1), num_heads=(2, 4))
    view = build_view("swin", model.double())
    x = torch.randn(2, 3, 224, 224, dtype=torch.float64)
    both, alone = head_outputs(view, x)[0], head_outputs(view, x[1:])[0]
    assert both.shape == (2, 2, 12)
    torch.testing.assert_close(both[1:], alone)
    torch.testing.assert_close(both.flatten(1), native_outputs(view, x, 0)[0].reshape(2, -1, 24).mean(1))


def test_places_and_class_token_are_found_inside_a_tower_and_a_wrapper():
    pytest.importorskip("open_clip")
    from tests.models.test_open_clip import view_of

    view, _, x = view_of("clip")
    maps = attention_maps(view, x, 1)
    lead, places = token_places(view, "image", maps.shape[-1])
    assert (lead, places.max(0).values.tolist()) == (1, [3, 3])
    z, _ = native_outputs(view, x, 1)
    torch.testing.assert_close(head_outputs(view, x)[1].flatten(1), z[:, 0])
    assert has_class_token(view.module)
    assert not has_class_token(variant("no class token")[0].module)


def test_tokens_without_a_grid_have_no_places():
    view, _ = variant("plain")
    with pytest.raises(UnsupportedModel, match="no known places"):
        token_places(view, "image", 3)
