"""Made from book/12-training.md: edit the chapter, not this file."""

import dataclasses
import glob
import hashlib
import json
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer.data import (
    PAD,
    Batch,
    Example,
    batches_by_tokens,
    make_batch,
    sample_pairs,
    to_examples,
    vocabularies,
)
from transformer.embedding import require_positive
from transformer.model import (
    CHECKPOINT_FORMAT,
    CHECKPOINT_VERSION,
    Transformer,
    TransformerConfig,
    digest,
    read_checkpoint,
    write_whole,
)

__all__ = [
    "phrasebook_model",
    "phrasebook_examples",
    "label_smoothed_loss",
    "warmup_rate",
    "Recipe",
    "papers_adam",
    "take_step",
    "plan_batches",
    "translated_exactly",
    "exact_match",
    "run_notes",
    "save_training",
    "remembered",
    "load_training",
    "sweep",
    "Progress",
    "train",
]


def phrasebook_model(seed: int = 0) -> Transformer:
    """An untrained model that fits the phrasebook: 2 + 2 layers of width 96."""
    french, english = vocabularies()
    config = TransformerConfig(
        french.size,
        english.size,
        d_model=96,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=192,
        dropout=0.0,
        max_length=32,
    )
    with torch.random.fork_rng(devices=[]):  # a GPU keeps its own numbers
        torch.default_generator.manual_seed(seed)
        return Transformer(config)


def phrasebook_examples(
    count: int = 50_000, seed: int = 0, held_out: bool = False
) -> list[Example]:
    """Sentences to train on, or (held out) with combinations that none of those has.

    Raises:
        ValueError: for a count below 1.
    """
    return to_examples(sample_pairs(count, seed, held_out), *vocabularies())


def label_smoothed_loss(
    logits: Float[Tensor, "batch length vocabulary"],
    targets: Int[Tensor, "batch length"],
    smoothing: float = 0.1,
    pad_id: int = PAD,
) -> Float[Tensor, ""]:
    """Cross-entropy against targets that keep 1 - ε and share ε among all words.

    The mean, in nats, over the targets that are not padding (section 5.4).

    Raises:
        ValueError: for smoothing outside [0, 1), sizes that disagree, or targets that
            are all padding.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}")
    if logits.shape[:-1] != targets.shape:
        shapes = f"{tuple(logits.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"each target needs a row of logits, got {shapes}")
    real = targets != pad_id
    if not real.any():
        raise ValueError("a loss needs at least one target, got only padding")
    surprise = -logits[real].log_softmax(dim=-1)  # of every word, in nats
    wanted = surprise.gather(-1, targets[real][:, None]).squeeze(-1)
    return ((1 - smoothing) * wanted + smoothing * surprise.mean(dim=-1)).mean()


def warmup_rate(step: int, d_model: int, warmup: int = 4000) -> float:
    """The paper's learning rate (equation 3): up in a line, down as 1/√step.

    Raises:
        ValueError: for a step, width or warm-up below 1.
    """
    require_positive(step=step, d_model=d_model, warmup=warmup)
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


@dataclass(frozen=True)
class Recipe:
    """How to train; the defaults learn the phrasebook.

    `cool_down` is the last share of the steps, over which the learning rate is drawn
    down to nothing; `max_norm` is the longest gradient that a step may follow.

    Raises:
        ValueError: naming the first choice that no training could follow.
    """

    epochs: int = 2
    max_tokens: int = 1024
    warmup: int = 300
    cool_down: float = 0.5
    smoothing: float = 0.1
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        require_positive(
            epochs=self.epochs, max_tokens=self.max_tokens, warmup=self.warmup
        )
        if not 0 <= self.cool_down <= 1:
            raise ValueError(f"cool_down must lie in [0, 1], got {self.cool_down}")
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1), got {self.smoothing}")
        if not self.max_norm > 0:
            raise ValueError(f"max_norm must be above 0, got {self.max_norm}")

    def rate(self, step: int, total: int, d_model: int) -> float:
        """The learning rate of a step, 1 to `total`."""
        left = (total - step) / total
        cooled = min(1.0, left / self.cool_down) if self.cool_down else 1.0
        return cooled * warmup_rate(step, d_model, self.warmup)


def papers_adam(model: Transformer) -> torch.optim.Adam:
    """Adam with the paper's constants (section 5.3); each step brings its own rate."""
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True
    )


def take_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    rate: float,
    recipe: Recipe,
) -> tuple[float, float]:
    """One lesson: the loss, its gradient, clipped, a step.

    Returns the loss, and the length of the gradient before it was clipped.
    """
    device = next(model.parameters()).device
    source, given, wanted = (ids.to(device) for ids in batch)
    for group in optimizer.param_groups:
        group["lr"] = rate
    logits = model(source, given)
    loss = label_smoothed_loss(logits, wanted, recipe.smoothing, model.config.pad_id)
    optimizer.zero_grad()
    loss.backward()
    gradient = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_norm)
    optimizer.step()
    return loss.item(), gradient.item()


def plan_batches(
    examples: Sequence[Example], max_tokens: int, epochs: int, seed: int
) -> list[list[int]]:
    """Which examples each step reads, epoch after epoch, always the same for a seed.

    Raises:
        ValueError: for an example longer than `max_tokens`.
    """
    rng = random.Random(seed)
    lengths = [max(len(source), len(target) + 1) for source, target in examples]
    return [
        batch
        for _ in range(epochs)
        for batch in batches_by_tokens(lengths, max_tokens, rng)
    ]


@torch.inference_mode()
def translated_exactly(
    model: Transformer, examples: Sequence[Example], max_tokens: int = 4096
) -> list[bool]:
    """For each example, whether the likeliest next word is right at every position.

    Given the right words so far, the model names each next one and the end: then, and
    only then, is greedy search's translation exactly the target.

    Raises:
        ValueError: for an example longer than `max_tokens` or the model's table.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    exact = [False] * len(examples)
    try:
        for indices in plan_batches(examples, max_tokens, epochs=1, seed=0):
            batch = make_batch([examples[index] for index in indices])
            source, given, wanted = (ids.to(device) for ids in batch)
            favourites = model(source, given).argmax(dim=-1)
            right = (favourites == wanted) | (wanted == model.config.pad_id)
            for index, whole in zip(indices, right.all(dim=-1).tolist(), strict=True):
                exact[index] = whole
    finally:
        model.train(was_training)
    return exact


def exact_match(model: Transformer, examples: Sequence[Example]) -> float:
    """The share of examples that the model translates exactly, word for word.

    Raises:
        ValueError: for no examples, or one longer than the model's table.
    """
    require_positive(examples=len(examples))
    return sum(translated_exactly(model, examples)) / len(examples)


def run_notes(
    model: Transformer, optimizer: torch.optim.Optimizer, about: Mapping[str, str]
) -> dict[str, str]:
    """What a file and the run that takes it up must have in common."""
    return {
        **about,
        "config": json.dumps(dataclasses.asdict(model.config)),
        "optimizer": type(optimizer).__name__,
    }


def save_training(
    path: str | os.PathLike[str],
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    step: int,
    about: Mapping[str, str] | None = None,
    more: Mapping[str, Tensor] | None = None,
) -> None:
    """Write all that the rest of a training depends on, whole or not at all.

    The weights, what the optimiser remembers, the step, and the state of torch's random
    numbers, from which dropout draws. `about` names the run, and no other may take the
    file up; `more` has room for further tensors, such as a running mean of the weights.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {
        f"model.{name}": weight for name, weight in model.named_parameters()
    }
    for index, memory in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in memory.items()}
    tensors |= {f"more.{name}": value for name, value in (more or {}).items()}
    tensors["random"] = torch.get_rng_state()
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in tensors.items()
    }
    notes = {**run_notes(model, optimizer, about or {}), "step": str(step)}
    metadata = {
        **notes,
        "format": CHECKPOINT_FORMAT,
        "version": CHECKPOINT_VERSION,
        "digest": digest(tensors, notes),
    }
    write_whole(Path(path), save(tensors, metadata))


def remembered(
    found: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Tensor]]:
    """What the optimiser of a file keeps for each weight, by the weight's number.

    Raises:
        ValueError: naming a tensor that this optimiser could not have kept.
    """
    weights = [one for group in optimizer.param_groups for one in group["params"]]
    shapes = {str(number): weight.shape for number, weight in enumerate(weights)}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in found.items():
        kind, _, rest = name.partition(".")
        number, _, key = rest.partition(".")
        if kind == "optimizer":
            if number not in shapes or value.shape not in ((), shapes[number]):
                raise ValueError(f"{name} does not fit")
            state.setdefault(int(number), {})[key] = value
        elif kind not in ("model", "more") and name != "random":
            raise ValueError(f"{name} is nothing of a run's")
    keys = {key for memory in state.values() for key in memory}
    for place, memory in state.items():
        for key in keys - memory.keys():
            raise ValueError(f"optimizer.{place}.{key} is missing")
    return state


def load_training(
    path: str | os.PathLike[str],
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    about: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, Tensor]]:
    """Take a training up where `save_training` left it: the last step, and `more`.

    Nothing is touched unless everything fits.

    Raises:
        ValueError: for a file that is missing, damaged, or of another model or run.
    """
    found, notes = read_checkpoint(Path(path))
    if "digest" not in notes:
        raise ValueError(f"{path} holds a model, not a training")
    written = notes.pop("digest")
    del notes["format"], notes["version"]
    if digest(found, notes) != written:
        raise ValueError(f"{path} is damaged: it is not what was written")
    for name, ours in run_notes(model, optimizer, about or {}).items():
        theirs = notes.get(name)
        if theirs != ours:
            raise ValueError(
                f"{path} is of another run: its {name} is {theirs}, here {ours}"
            )
    weights = {f"model.{name}": weight for name, weight in model.named_parameters()}
    fits = {(name, weight.shape, weight.dtype) for name, weight in weights.items()}
    read = {n: x for n, x in found.items() if n.startswith("model.")}
    if odd := fits ^ {(name, x.shape, x.dtype) for name, x in read.items()}:
        name = min(name for name, *_ in odd)
        raise ValueError(f"{path} is of another model: {name} does not fit")
    for name, weight in read.items():
        if not weight.isfinite().all():
            raise ValueError(f"{path}: {name} holds a number that is not finite")
    try:
        state = remembered(found, optimizer)
        step, chance = int(notes["step"]), found["random"]
        torch.Generator().set_state(chance)  # refuses what is no state
        if step < 0:
            raise ValueError(f"step {step}")
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path} has no step, random state or memory: {reason}"
        ) from None
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(found[name])
    torch.set_rng_state(chance)
    return step, {n[5:]: x for n, x in found.items() if n.startswith("more.")}


def sweep(path: Path) -> None:
    """Remove the unfinished files of writers that were killed."""
    for part in path.parent.glob(f"{glob.escape(path.name)}.*.part"):
        part.unlink(missing_ok=True)


class Progress(NamedTuple):
    """Where a training stands after a step; times in seconds.

    `gradient` is the length that the gradient had before it was clipped.
    """

    step: int
    total: int
    loss: float
    rate: float
    gradient: float
    tokens_per_second: float
    seconds_left: float


def train(
    model: Transformer,
    examples: Sequence[Example],
    recipe: Recipe | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 100,
) -> Iterator[Progress]:
    """Train the model in place, and say after each step how it goes.

    Nothing happens until somebody asks: `for progress in train(…)`. `seed` orders the
    examples; dropout draws from torch's own generator.

    With a `checkpoint`, the run is kept in that file `every` so many steps and at its
    end. If the file is there already, the run goes on after the step that it holds, to
    the same weights, bit for bit on one thread of one machine, as if it had never
    stopped. A training that is finished gives its weights and yields nothing.

    Raises:
        ValueError: for no examples, one longer than a batch or the model's table, or a
            checkpoint that is damaged or of another run.
    """
    recipe = recipe or Recipe()
    require_positive(examples=len(examples), every=every)
    plan = plan_batches(examples, recipe.max_tokens, recipe.epochs, seed)
    optimizer = papers_adam(model)
    done, about = 0, {}
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        lessons = hashlib.sha256(json.dumps(list(examples)).encode()).hexdigest()
        about = {"recipe": repr(recipe), "seed": str(seed), "lessons": lessons[:12]}
        sweep(path)
        if path.exists():
            done, _ = load_training(path, model, optimizer, about)
    model.train()
    started, tokens = time.perf_counter(), 0
    for step, indices in enumerate(plan[done:], start=done + 1):
        rate = recipe.rate(step, len(plan), model.config.d_model)
        batch = make_batch([examples[index] for index in indices])
        loss, gradient = take_step(model, optimizer, batch, rate, recipe)
        if path is not None and (step % every == 0 or step == len(plan)):
            save_training(path, model, optimizer, step, about)
        tokens += sum(len(examples[index][1]) + 1 for index in indices)
        seconds = time.perf_counter() - started
        left = seconds / (step - done) * (len(plan) - step)
        speed = tokens / max(seconds, 1e-9)
        yield Progress(step, len(plan), loss, rate, gradient, speed, left)
    model.eval()
