"""The benchmarks run, tiny, on any machine; what they compare computes the same."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import fused_loss  # noqa: E402
import gpu  # noqa: E402
import peers  # noqa: E402
import race  # noqa: E402
import training  # noqa: E402

from transformer.training.chunked_loss import chunked_loss  # noqa: E402


@pytest.mark.plain
@pytest.mark.nightly
def test_the_gpus_benchmark_runs_whole_where_there_is_no_gpu(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu.py", "--smoke", "--out", tmp_path],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu-smoke.json").read_text("utf-8"))
    parts = found["parts"]
    assert not [part for part in parts.values() if {"failed", "skipped"} & set(part)]
    assert {"kernels", "training", "training, compiled", "decoding"} <= set(parts)
    for case in ("float32, batch 2", "bfloat16, batch 2"):
        assert parts["decoding"][case]["same tokens"]
    assert found["made"]["versions"]["torch"] == torch.__version__
    assert found["made"]["device"] == "cpu"


def test_without_a_gpu_its_benchmark_says_so_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    assert gpu.main() == 2
    assert capsys.readouterr().err.startswith("no GPU here: --smoke")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", [rung for rung in training.LADDER if rung not in ("plain", "fused Adam")]
)
def test_every_rung_of_our_ladder_has_the_same_loss_and_gradient(name):
    batch = training.random_batches("smoke", in_order=False)[0]
    assert (batch.source == 0).any()
    torch.manual_seed(0)
    model, loss = training.our_rung(name, "smoke")
    torch.manual_seed(0)
    expected = peers.our_model("smoke")
    for each in (model, expected):
        each.eval()
    loss(batch).backward()
    other = peers.our_loss(expected, batch)
    other.backward()
    torch.testing.assert_close(loss(batch), other)
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_the_tutorials_model_and_pytorchs_have_a_loss_on_our_batches():
    batch = training.random_batches("smoke", in_order=True)[0]
    for name in ("plain", "torch.nn.Transformer"):
        model, loss = peers.peer(name, "smoke")
        ours = peers.our_model("smoke")
        count = [sum(p.numel() for p in each.parameters()) for each in (model, ours)]
        assert count[0] == count[1], name
        assert loss(batch).isfinite()
    with pytest.raises(ValueError, match="no contestant is called 'nobody'"):
        peers.peer("nobody", "smoke")


@pytest.mark.plain
@pytest.mark.nightly
def test_a_race_goes_round_by_round():
    script = ROOT / "benchmarks" / "training.py"
    task = {"size": "smoke", "bf16": False, "in_order": True, "formula": True}
    tasks = {name: {**task, "name": name} for name in ("ours", "fused attention")}
    field = race.race(str(script), tasks, 1, False, rounds=2)
    for each in field.values():
        assert len(each["rounds"]) == 2
        assert each["tokens_per_second"] > 0
    assert set(race.ratios(field, "ours")) == {"fused attention"}


@pytest.mark.parametrize("chunk_size", [1, 5, 100])
def test_the_fused_loss_is_the_packages(chunk_size):
    torch.manual_seed(0)
    hidden = torch.randn(3, 7, 8, requires_grad=True)
    weight = torch.randn(11, 8, requires_grad=True)
    labels = torch.randint(1, 11, (3, 7)).index_fill_(1, torch.tensor(6), 0)
    found = []
    for loss in (
        partial(fused_loss.fused_loss, piece=fused_loss.cost_and_gradient),
        chunked_loss,
    ):
        with torch.autocast("cpu", torch.bfloat16):
            cost = loss(hidden, weight, labels, chunk_size=chunk_size)
        found.append((cost, *torch.autograd.grad(3 * cost, (hidden, weight))))
    for mine, theirs in zip(*found, strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine - theirs).norm() < 0.01 * theirs.norm()


@pytest.mark.parametrize("change", [gpu.packed, gpu.spelled_out])
def test_a_changed_attention_computes_the_same(change):
    batch = training.random_batches("smoke", in_order=False)[0]
    model = peers.our_model("smoke").eval()
    expected = peers.our_loss(model, batch)
    change(None, model)
    torch.testing.assert_close(peers.our_loss(model, batch), expected)


@pytest.mark.plain
def test_a_page_draws_from_every_stored_result() -> None:
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "book").rglob("*.md"))
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert f'results("{path.stem}")' in pages, f"no page draws from {path.name}"
