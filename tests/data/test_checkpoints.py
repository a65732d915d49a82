"""Weights from outside: every lie in a header is found before anything is allocated for it."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from hydra_core.data import checkpoints
from hydra_core.data.checkpoints import TORCH_WARNING, expected_of, load_into, read_safetensors, read_weights
from hydra_core.data.headers import read_header
from hydra_core.data.report import IntakeReport
from hydra_core.errors import CheckpointError
from tests.data.make import safetensors as forge


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_weights_survive_the_round_trip(tmp_path: Path) -> None:
    module = net()
    data = safetensors.torch.save(module.state_dict())
    (tmp_path / "w.safetensors").write_bytes(data)
    for source in (data, tmp_path / "w.safetensors", str(tmp_path / "w.safetensors")):
        state = read_safetensors(source, expected_of(module))
        other = load_into(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), state)
        for name, tensor in module.state_dict().items():
            assert torch.equal(other.state_dict()[name], tensor)


def test_half_precision_fits_a_float_model_and_integers_do_not() -> None:
    state = {k: v.half() if v.is_floating_point() else v for k, v in net().state_dict().items()}
    module = load_into(net(), read_safetensors(safetensors.torch.save(state), expected_of(net())))
    assert module[0].weight.dtype == torch.float32
    assert torch.equal(module[0].weight, state["0.weight"].float())
    state["0.weight"] = torch.zeros(3, 4, dtype=torch.int64)
    with pytest.raises(CheckpointError, match=r"0.weight expected \(3, 4\) float32, got \(3, 4\) int64"):
        read_safetensors(safetensors.torch.save(state), expected_of(net()))


@pytest.mark.parametrize("prefix", ["module.", "model.", "module.model.", "_orig_mod."])
def test_shared_prefixes_are_taken_off(prefix: str) -> None:
    data = safetensors.torch.save({prefix + k: v for k, v in net().state_dict().items()})
    assert set(read_safetensors(data)) == set(net().state_dict())
    load_into(net(), {prefix + k: v for k, v in net().state_dict().items()})


def test_a_prefix_that_the_model_has_stays_or_comes_back() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = net()

    data = safetensors.torch.save(Wrapped().state_dict())
    load_into(Wrapped(), read_safetensors(data, expected_of(Wrapped())))
    load_into(Wrapped(), read_safetensors(data))  # taken off without knowing the model, put back by it


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580])
def test_headers_whose_length_starts_like_a_pickle_are_read(length: int) -> None:
    data = safetensors.torch.save({"w": torch.zeros(1)})
    header = data[8:-4].rstrip().ljust(length)
    assert read_safetensors(struct.pack("<Q", length) + header + data[-4:])["w"].tolist() == [0.0]


def test_names_and_shapes_that_differ_are_listed() -> None:
    state = {f"extra{i}": torch.zeros(1) for i in range(9)} | {"0.weight": torch.zeros(5, 4)}
    with pytest.raises(CheckpointError) as error:
        read_safetensors(safetensors.torch.save(state), expected_of(net()))
    text = str(error.value)
    assert "0.weight expected (3, 4) float32, got (5, 4) float32" in text
    assert "8 missing" in text
    assert "9 not in the model (extra0; extra1; extra2; extra3; extra4 ...)" in text


def test_names_in_messages_are_plain() -> None:
    state = {"<img src=x>" + "y" * 5000: torch.zeros(1)}
    with pytest.raises(CheckpointError) as error:
        read_safetensors(safetensors.torch.save(state), expected_of(nn.Linear(1, 1)))
    assert "<img" not in str(error.value)
    assert len(str(error.value)) < 1000


def test_weights_that_are_not_finite_are_refused() -> None:
    state = net().state_dict()
    state["2.weight"][0, 0] = float("nan")
    with pytest.raises(CheckpointError, match=r"not finite.*2\.weight"):
        load_into(net(), state)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
def test_a_pickle_in_disguise_never_runs(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    data = pickle.dumps({"w": Bomb(mark)}, protocol=protocol)
    for name in ("w.safetensors", "w.pt"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CheckpointError):
            read_weights(tmp_path / name)
    with pytest.raises(CheckpointError):
        read_safetensors(data)
    torch.save({"w": Bomb(mark)}, tmp_path / "z.pt")
    (tmp_path / "z.safetensors").write_bytes((tmp_path / "z.pt").read_bytes())
    with pytest.raises(CheckpointError, match="holds more than weights"):
        read_weights(tmp_path / "z.pt")
    with pytest.raises(CheckpointError, match="pickle or torch file, not safetensors"):
        read_weights(tmp_path / "z.safetensors")
    assert not mark.exists()


FOUR = b"\0" * 4
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too short"),
    "short": (b"\x02\0\0\0", "too short"),
    "header bomb": (struct.pack("<Q", 2**60) + b"{}" + FOUR, "header does not fit"),
    "header of 17 MB": (forge(b"{" + b" " * (17 * 2**20)), "header does not fit"),
    "header past the end": (forge({"w": entry([1], 0, 4)}, FOUR, length=5000), "header does not fit"),
    "not JSON": (forge(b"{'w': 1}"), "not JSON"),
    "not UTF-8": (forge(b'{"\xff": 1}'), "not JSON"),
    "no object": (forge(b"[1, 2, 3]"), "header is not safetensors"),
    "deep": (forge(b'{"w":' + b"[" * 100_000), "not JSON"),
    "huge number": (forge(b'{"w": ' + b"9" * 10_000 + b"}"), "not JSON"),
    "twice": (forge(b'{"w":1,"w":2}'), "stands twice"),
    "no entry": (forge({"w": [1]}), "malformed"),
    "unknown key": (forge({"w": {**entry([1], 0, 4), "code": "x"}}, FOUR), "malformed"),
    "unknown dtype": (forge({"w": entry([1], 0, 4, "PYOBJ")}, FOUR), "unknown dtype"),
    "dtype no text": (forge({"w": {**entry([1], 0, 4), "dtype": {}}}, FOUR), "unknown dtype"),
    "negative size": (forge({"w": entry([-1], 0, 4)}, FOUR), "not a shape"),
    "float size": (forge({"w": entry([1.0], 0, 4)}, FOUR), "not a shape"),  # type: ignore[list-item]
    "true size": (forge({"w": entry([True], 0, 4)}, FOUR), "not a shape"),
    "many sizes": (forge({"w": entry([1] * 17, 0, 4)}, FOUR), "not a shape"),
    "offsets turned": (forge({"w": entry([1], 4, 0)}, FOUR), "not a byte range"),
    "negative offset": (forge({"w": entry([1], -4, 0)}, FOUR), "not a byte range"),
    "tensor bomb": (forge({"w": entry([2**40, 2**20], 0, 4)}, FOUR), "size and shape disagree"),
    "tensor past the end": (forge({"w": entry([1000], 0, 4000)}, FOUR), "truncated"),
    "far offset": (forge({"w": entry([1], 2**50, 2**50 + 4)}, FOUR), "leave a gap"),
    "overlap": (forge({"a": entry([1], 0, 4), "b": entry([1], 2, 6)}, FOUR + b"\0\0"), "overlap"),
    "same bytes": (forge({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, FOUR), "overlap"),
    "gap": (forge({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, FOUR * 3), "leave a gap"),
    "rest": (forge({"w": entry([1], 0, 4)}, FOUR + b"code"), "no tensor owns"),
    "truncated": (safetensors.torch.save({"w": torch.zeros(100)})[:-8], "truncated"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_is_refused(name: str, tmp_path: Path) -> None:
    data, text = LIES[name]
    with pytest.raises(CheckpointError, match=text):
        read_safetensors(data)
    (tmp_path / "w.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=text):
        read_weights(tmp_path / "w.safetensors")


def test_the_header_tells_shapes_without_reading_tensors() -> None:
    data = safetensors.torch.save(
        {"w": torch.zeros(2, 3, dtype=torch.bfloat16), "n": torch.zeros((), dtype=torch.int64)}
    )
    infos = read_header(data)
    assert {name: (i.shape, i.dtype) for name, i in infos.items()} == {
        "w": ((2, 3), torch.bfloat16),
        "n": ((), torch.int64),
    }


def test_a_tensor_larger_than_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 6 * 10**9
    path = tmp_path / "w.safetensors"
    path.write_bytes(forge({"w": entry([size // 4], 0, size)}))
    os.truncate(path, path.stat().st_size + size)  # sparse: no disk is used
    with pytest.raises(CheckpointError, match="too large"):
        read_safetensors(path, max_bytes=10**9)
    monkeypatch.setattr(checkpoints, "free_memory", lambda: 10**9)
    with pytest.raises(CheckpointError, match=r"do not fit into memory. Expected at most 1.0 GB. Got 6.0 GB"):
        read_safetensors(path)


def test_free_memory_is_plausible() -> None:
    free = checkpoints.free_memory()
    assert free is None or 10**6 < free < 10**14


@pytest.mark.parametrize("nest", [None, "state_dict", "model"])
def test_torch_files_are_read_with_a_warning(tmp_path: Path, nest: str | None) -> None:
    state = {f"module.{k}": v for k, v in net().state_dict().items()}
    path = tmp_path / "w.pth"
    torch.save(state if nest is None else {"epoch": 3, nest: state}, path)
    report = IntakeReport("w.pth")
    load_into(net(), read_weights(path, expected=expected_of(net()), report=report))
    assert report.notes == [TORCH_WARNING]


def test_torch_files_that_are_damaged_or_hold_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save(net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CheckpointError, match="damaged"):
        read_weights(path)
    torch.save({"epoch": 3}, path)
    with pytest.raises(CheckpointError, match="no tensors"):
        read_weights(path)
    torch.save(net(), path)
    with pytest.raises(CheckpointError, match="holds more than weights"):
        read_weights(path)
    with pytest.raises(CheckpointError, match="There is no file"):
        read_weights(tmp_path / "none.pt")
