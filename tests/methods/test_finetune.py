"""Fine-tuned members: only what may change changes, runs resume, and fusion is exact where it can be."""

from __future__ import annotations

import threading

import pytest
import torch

from hydra_core.errors import Cancelled, CheckpointError
from hydra_core.fusion.ensemble import FusionOptions, fuse
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.methods.ensembles import hydra, unfused
from hydra_core.methods.lora import lora_ensemble
from hydra_core.training import rows
from hydra_core.training.finetune import finetune_members
from hydra_core.training.loop import Recipe
from tests.methods.conftest import batch, tiny

RECIPE = Recipe(epochs=2, batch=8, lr=1e-2)
Y = torch.arange(16) % 5


def plan() -> Plan:
    return Plan(tuple(HeadMask.random((4, 4, 4), 2, seed, layers=(2,)) for seed in range(2)))


def tuned(**options):
    return finetune_members(tiny(), plan(), batch(16), Y, RECIPE, **options)


def test_embeddings_and_trunk_stay_and_the_rest_learns():
    before = tiny().module.state_dict()
    for model in tuned():
        for key, tensor in model.state_dict().items():
            same = tensor.shape == before[key].shape and torch.equal(tensor, before[key])
            assert same == (not key.startswith(("blocks.2", "norm.", "head."))), key


def test_fusion_of_tuned_members_is_exact_without_merged_mlps_and_near_with_them():
    models = tuned()
    apart = unfused(tiny(), plan(), models).member_logits(batch())
    exact = fuse(tiny(), plan(), members=models, options=FusionOptions(merge_mlp=False))(batch())
    torch.testing.assert_close(exact, apart, rtol=1e-9, atol=1e-9)
    merged = hydra(tiny(), plan(), models).member_logits(batch())
    assert 0 < (merged - apart).abs().max() < apart.abs().max()
    averaged = hydra(tiny(), plan(), models, FusionOptions(norms="average")).member_logits(batch())
    assert (averaged - apart).abs().mean() > (merged - apart).abs().mean()  # one more approximation


def test_training_lowers_each_members_loss():
    loss = torch.nn.functional.cross_entropy
    before = unfused(tiny(), plan()).member_logits(batch(16))
    after = unfused(tiny(), plan(), tuned()).member_logits(batch(16))
    for m in range(2):
        assert loss(after[m], Y) < loss(before[m], Y)


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path):
    stop = threading.Event()

    def progress(share: float, text: str) -> None:
        if share > 0.2:
            stop.set()

    with pytest.raises(Cancelled):
        tuned(folder=tmp_path, progress=progress, cancel=stop)
    for a, b in zip(tuned(folder=tmp_path), tuned(), strict=True):
        assert all(torch.equal(t, b.state_dict()[key]) for key, t in a.state_dict().items())


def test_stored_rows_come_back_and_know_their_model(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "ASSETS", tmp_path)
    monkeypatch.setattr(rows, "FACTS", tmp_path / "rows.json")
    with pytest.raises(CheckpointError, match="not been trained"):
        rows.load_row("lora_ensemble", tiny())
    method = lora_ensemble(tiny())
    with torch.no_grad():
        for name, tensor in method.state().items():
            if name.endswith(".b"):
                tensor.normal_(std=0.1)
    rows.store_row("lora_ensemble", tiny(), method.state())
    again = rows.load_row("lora_ensemble", tiny())
    torch.testing.assert_close(again.member_logits(batch()), method.member_logits(batch()), rtol=0.02, atol=0.05)
    with pytest.raises(CheckpointError, match="other weights"):
        rows.load_row("lora_ensemble", tiny(1))


def test_stored_members_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "ASSETS", tmp_path)
    monkeypatch.setattr(rows, "FACTS", tmp_path / "rows.json")
    models = tuned()
    tensors = {
        f"{m}.{k}": t for m, model in enumerate(models) for k, t in model.state_dict().items() if "blocks.2" in k
    }
    rows.store_row("hydra_circ_tuned", tiny(), tensors, plan=plan().to_json())
    again, loaded = rows.load_members("hydra_circ_tuned", tiny())
    assert again == plan()
    for a, b in zip(loaded, models, strict=True):
        torch.testing.assert_close(a.blocks(torch.ones(1, 17, 24).double()), b.blocks(torch.ones(1, 17, 24).double()),
                                   rtol=0.02, atol=0.1)  # fmt: skip
