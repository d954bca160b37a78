"""Several processes that train together."""

import dataclasses
import subprocess
import sys
import types

import pytest
import torch
import torch.distributed as dist
from small_runs import CONFIG, ENVIRONMENT, ROOT, run_steps, small_model

from transformer.text.batches import example_length
from transformer.training.distributed import ProcessGroup
from transformer.training.run_folder import load_run, read_metrics

on_unix = pytest.mark.skipif(sys.platform == "win32", reason="needs torchrun")
# Two processes with micro batches; without dropout they follow one process alone.
SHARED = dataclasses.replace(CONFIG, epochs=2, micro_batch_tokens=100)

SCRIPT = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from small_runs import load_dataset, run_steps, small_model
from test_distributed import SHARED
from transformer.training.distributed import ProcessGroup

torch.set_num_threads(1)
corpus, out = map(Path, sys.argv[1:])
group = ProcessGroup.start()
dataset = load_dataset(corpus)

def run(folder, steps=None):
    model = small_model(dataset, dropout=0.0)
    run_steps(dataset, folder, steps, SHARED, model, process_group=group)

run(out / "two")
try:
    run(corpus)
except ValueError as error:
    print(f"process {group.rank}: {error}", file=sys.stderr, flush=True)
try:
    run(out / "left", 2 if group.rank else None)
    raise ValueError("this one fails")
except ValueError as error:
    print(f"process {group.rank}: {error}", file=sys.stderr, flush=True)
    sys.exit(2)
"""


@pytest.fixture(scope="module")
def torchrun(corpus, tmp_path_factory):
    """Two processes: a whole run, one that the first refuses, one the second ends."""
    out = tmp_path_factory.mktemp("torchrun")
    (out / "script.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", out / "script.py", corpus, out]
    done = subprocess.run(
        [str(part) for part in command],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return out, done


@on_unix
@pytest.mark.plain
def test_two_processes_do_what_one_does(torchrun, dataset, tmp_path):
    out, done = torchrun
    model = small_model(dataset, dropout=0.0)
    run_steps(dataset, tmp_path, config=SHARED, model=model)
    files = [{path.name for path in each.iterdir()} for each in (tmp_path, out / "two")]
    assert files[0] == files[1], done.stderr
    one, two = read_metrics(tmp_path), read_metrics(out / "two")
    for alone, shared in zip(one, two, strict=True):
        assert shared.loss == pytest.approx(alone.loss, rel=1e-4)
        assert shared.grad_norm == pytest.approx(alone.grad_norm, rel=1e-3)
        assert shared.target_tokens == alone.target_tokens
        if alone.validation_loss is None:
            assert shared.validation_loss is None
        else:
            expected = pytest.approx(alone.validation_loss, rel=1e-4)
            assert shared.validation_loss == expected
    models = [load_run(folder).model for folder in (tmp_path, out / "two")]
    for (name, ours), theirs in zip(
        models[0].named_parameters(), models[1].parameters(), strict=True
    ):
        if "key_proj.bias" not in name:  # its gradient is 0, but for rounding
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)


@on_unix
@pytest.mark.plain
def test_when_one_process_fails_each_prints_one_line(torchrun):
    _, done = torchrun
    assert done.returncode != 0
    assert "but no run.json" in done.stderr
    assert "process 1: the first process stopped: see its message" in done.stderr
    assert "process 1: this one fails" in done.stderr
    # What torchrun itself says of failed processes comes after ours.
    ours = done.stderr.partition("torch/distributed/elastic")[0]
    assert "Traceback" not in ours


def examples(count):
    return [([3] * (1 + i % 5), [4] * (1 + i % 3)) for i in range(count)]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_step_is_shared_without_loss(size):
    batch = examples(21)
    shares = [ProcessGroup(rank, size).shard(batch, 12) for rank in range(size)]
    key = str
    found = [example for share in shares for part in share for example in part]
    assert sorted(found, key=key) == sorted(batch, key=key)
    for share in shares:
        for part in share:
            assert len(part) * max(map(example_length, part)) <= 12
    sizes = [sum(map(len, share)) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert ProcessGroup(7, 8).shard(examples(3), 12) == []


def test_one_process_alone_needs_no_others(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    group = ProcessGroup.start()
    assert (group.rank, group.size, group.device) == (0, 1, torch.device("cpu"))
    assert group.sum(1.5) == 1.5
    assert group.on_rank_zero(lambda: "done") == "done"
    with pytest.raises(OSError, match="mine"), group.connected():
        group.on_rank_zero(lambda: (_ for _ in ()).throw(OSError("mine")))
    group.close()
    assert not torch.distributed.is_initialized()


def test_each_process_needs_a_gpu_of_its_own(monkeypatch):
    for name in ("nope", "mps"):
        with pytest.raises(ValueError, match=f"no device '{name}' was found here"):
            ProcessGroup.start(name)
    current = []
    cuda = types.SimpleNamespace(device_count=lambda: 2, set_device=current.append)
    found = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: cuda)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_RANK", "1")
    group = ProcessGroup.start("cuda")  # without a tensor on the first GPU
    assert (group.rank, group.device) == (5, torch.device("cuda", 1))
    assert current == [1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="process 3 of this machine found 2"):
        ProcessGroup.start("cuda")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (dist.DistNetworkError("port in use\n\n  at 29500"), "port in use at 29500"),
        (RuntimeError("[/x/gloo/transport/pair.cc:1] closed"), "pair.cc:1. closed"),
    ],
)
def test_what_a_connection_says_is_kept(error, line):
    with (
        pytest.raises(ValueError, match=f"processes failed: .*{line}") as caught,
        ProcessGroup(0, 2).connected(),
    ):
        raise error
    assert caught.value.__cause__ is error


def test_another_error_is_not_taken_for_a_lost_connection():
    message = "Could not restore the state from the store"
    with pytest.raises(RuntimeError, match=message), ProcessGroup(0, 2).connected():
        raise RuntimeError(message)


def test_processes_wait_for_a_long_evaluation(monkeypatch):
    found = {}
    monkeypatch.setattr(
        torch.distributed,
        "init_process_group",
        lambda backend, **options: found.update(options, backend=backend),
    )
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    ProcessGroup.start("cpu")
    assert found["backend"] == "gloo"
    assert found["timeout"].total_seconds() >= 12 * 3600
