"""What each part of the phrasebook's training is worth: train without it and compare.

    python benchmarks/ablations.py                  # all variants, seeds 0, 1 and 2
    python benchmarks/ablations.py --seeds 0 --only whole no-root

One thread, half the steps of the default training a run; half an hour in all on one
free core. Every finished run is kept at once in benchmarks/results/ablations.json, and
a run that is there already is not made again: stop it and start it as you like. Chapter
12 draws its figures from that file.
"""

import argparse
import dataclasses
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from race import RESULTS, begun, keep, made_here, one_by_one
from torch import nn
from torch.nn import functional as F

from bookkit import broken
from bookkit.broken import HALF
from transformer.masks import padding_mask
from transformer.model import Transformer
from transformer.phrasebook.grammar import (
    phrasebook_examples,
    sample_pairs,
)
from transformer.text.batches import (
    Batch,
    Example,
    batches_by_tokens,
    example_length,
    make_batch,
)
from transformer.text.words import BOS_ID, EOS_ID
from transformer.training import loop
from transformer.training.accuracy import exact_match
from transformer.training.config import TrainingConfig
from transformer.training.loop import (
    paper_adam,
    phrasebook_model,
    train,
    train_step,
)
from transformer.training.loss import label_smoothed_loss

THIN = 5  # steps to a stored point of a curve
SHOCK = 150  # the step whose batch goes wrong in two of the variants


class Constant(TrainingConfig):
    """The same small learning rate from the first step to the last."""

    def learning_rate_at(self, step: int, total_steps: int, d_model: int) -> float:
        return 0.002


class Shocked(Transformer):
    """A model whose logits are a thousand times too large in a single batch."""

    batches = 0

    def forward(self, source_ids: torch.Tensor, target_ids: torch.Tensor):
        logits = super().forward(source_ids, target_ids)
        if self.training:
            self.batches += 1
            if self.batches == SHOCK:
                return 1000 * logits
        return logits


class HalfClipped(torch.optim.Adam):
    """Adam that clips gradients, but the bad batch's not for one of its two means."""

    def __init__(self, model: nn.Module, unclipped: str) -> None:
        super().__init__(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
        self.unclipped, self.steps = unclipped, 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        (group,) = self.param_groups
        gradients = torch.cat([weight.grad.flatten() for weight in group["params"]])
        factor = 1 / max(1.0, gradients.norm().item())
        bad = self.steps == SHOCK
        for_mean = 1 if bad and self.unclipped == "mean" else factor
        for_square = 1 if bad and self.unclipped == "square" else factor
        for weight in group["params"]:
            state = self.state[weight]
            if not state:
                state |= {"m": torch.zeros_like(weight), "v": torch.zeros_like(weight)}
            m, v, gradient = state["m"], state["v"], weight.grad
            m.lerp_(for_mean * gradient, 0.1)
            v.lerp_((for_square * gradient).square(), 0.02)
            root = (v / (1 - 0.98**self.steps)).sqrt() + 1e-9
            weight.addcdiv_(m, root, value=-group["lr"] / (1 - 0.9**self.steps))


class LargerAtFirst:
    """A training step with eight batches in one for the first hundred steps.

    The other seven come from the same training set, in another order.
    """

    def __init__(self, examples: list[Example], seed: int) -> None:
        self.examples, self.steps = examples, 0
        lengths = [example_length(example) for example in examples]
        rng = random.Random(1000 + seed)
        orders = (batches_by_tokens(lengths, 1024, rng) for _ in itertools.count())
        self.others = itertools.chain.from_iterable(orders)

    def __call__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Batch,
        learning_rate: float,
        config: TrainingConfig,
    ) -> tuple[float, float]:
        self.steps += 1
        if self.steps <= 100:
            more = [
                make_batch([self.examples[index] for index in indices])
                for indices in itertools.islice(self.others, 7)
            ]
            batch = Batch(*map(side_by_side, zip(batch, *more, strict=True)))
        return train_step(model, optimizer, batch, learning_rate, config)


def side_by_side(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Several rectangles of ids as one, padded to the widest."""
    width = max(part.size(1) for part in parts)
    return torch.cat([F.pad(part, (0, width - part.size(1))) for part in parts])


@dataclasses.dataclass(frozen=True)
class Variant:
    """One departure from the whole: of the model, its training or its examples."""

    description: str
    sizes: dict = dataclasses.field(default_factory=dict)
    training: TrainingConfig = HALF
    change: Callable[[Transformer], Transformer] = lambda model: model
    kind: type[Transformer] = Transformer
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = paper_adam
    step: Callable[[list[Example], int], Callable] = lambda examples, seed: train_step
    examples: int = 50_000

    def model(self, seed: int) -> Transformer:
        config = dataclasses.replace(phrasebook_model().config, **self.sizes)
        torch.manual_seed(seed)
        return self.change(self.kind(config))


def half(**changes) -> TrainingConfig:
    """The training at double speed, with something changed."""
    return dataclasses.replace(HALF, **changes)


def tie_output(model: Transformer) -> Transformer:
    """One table for the target's tokens in the decoder's input and in its output."""
    model.output.weight = model.target_embedding.table.weight
    return model


def torch_initialisation(model: Transformer) -> Transformer:
    """The initial weights that `nn.Linear` draws by default."""
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    return model


@torch.no_grad()
def scale(model: Transformer, factor: float) -> Transformer:
    """Multiply the initial weights of all linear maps."""
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.weight *= factor
    return model


def with_momentum(rate: float) -> Variant:
    """Gradient descent with momentum, without Adam's division, at this peak rate."""
    return Variant(
        f"gradient descent, momentum 0.9, peak rate {rate}",
        training=half(learning_rate=rate),
        optimizer=lambda model: torch.optim.SGD(
            model.parameters(), lr=0.0, momentum=0.9
        ),
    )


PRE = {"norm_first": True}
FEW = {"examples": 1000, "training": half(epochs=48)}
VARIANTS = {
    "whole": Variant("as shipped, in half the steps"),
    "no-root": Variant("scores not divided by √d_k", change=broken.without_root),
    "no-causal-mask": Variant(
        "the decoder sees later tokens", change=broken.without_causal_mask
    ),
    "no-positions": Variant("no positions", change=broken.without_positions),
    "no-residuals": Variant("no additions", change=broken.without_residuals),
    "no-warmup": Variant(
        "full rate from the first step", training=broken.without_warmup(HALF)
    ),
    "no-warmup-longer": Variant(
        "full rate from the first step, four times as many steps",
        training=dataclasses.replace(broken.without_warmup(HALF), epochs=4),
    ),
    "no-warmup-larger-batches": Variant(
        "full rate from the first step, batches eight times as large for 100 steps",
        training=broken.without_warmup(HALF),
        step=LargerAtFirst,
    ),
    "pre-norm": Variant("norm before the sublayer", PRE),
    "pre-norm-no-warmup": Variant(
        "pre-norm, full rate at once", PRE, broken.without_warmup(HALF)
    ),
    "no-cool-down": Variant("the paper's rate to the end", training=half(cooldown=0.0)),
    "constant": Variant(
        "a rate of 0.002 throughout", training=Constant(**dataclasses.asdict(HALF))
    ),
    "no-clipping": Variant("no clipping", training=half(max_grad_norm=float("inf"))),
    "shock": Variant("one bad batch, clipped", kind=Shocked),
    "shock-no-clipping": Variant(
        "one bad batch, not clipped",
        kind=Shocked,
        training=half(max_grad_norm=float("inf")),
    ),
    "shock-mean": Variant(
        "one bad batch, not clipped in Adam's mean",
        kind=Shocked,
        training=half(max_grad_norm=float("inf")),
        optimizer=partial(HalfClipped, unclipped="mean"),
    ),
    "shock-square": Variant(
        "one bad batch, not clipped in Adam's mean square",
        kind=Shocked,
        training=half(max_grad_norm=float("inf")),
        optimizer=partial(HalfClipped, unclipped="square"),
    ),
    "no-smoothing": Variant("no label smoothing", training=half(label_smoothing=0.0)),
    "dropout": Variant("dropout 0.1", {"dropout": 0.1}),
    "few": Variant("a thousand sentences, again and again", **FEW),
    "few-dropout": Variant("a thousand, dropout 0.3", {"dropout": 0.3}, **FEW),
    "tied-output": Variant("output table = target table", change=tie_output),
    "torch-init": Variant("torch's own initial weights", change=torch_initialisation),
    **{f"momentum-{rate}": with_momentum(rate) for rate in (0.03, 0.1, 0.3, 1.0)},
    "large-init": Variant(
        "initial weights five times Xavier's",
        change=lambda model: scale(model, 5),
    ),
}


def rounded(number: float) -> float | None:
    """A number for the file; None for one that is not finite, which JSON has not."""
    return round(number, 4) if math.isfinite(number) else None


@torch.inference_mode()
def greedy_exact(model: Transformer, examples: list[Example]) -> float:
    """The share that the model translates exactly from its own tokens, greedily.

    Without a cache, which broken decoders do not have.
    """
    model.eval()
    right = 0
    for start in range(0, len(examples), 250):
        part = examples[start : start + 250]
        batch = make_batch(part)
        memory = model.encode(batch.source)
        mask = padding_mask(batch.source, model.config.pad_id)
        tokens = torch.full((len(part), 1), BOS_ID)
        for _ in range(batch.labels.size(1)):
            hidden = model.decode(tokens, memory, mask)[:, -1:]
            tokens = torch.cat([tokens, model.output(hidden).argmax(dim=-1)], dim=1)
        for (_, target), ids in zip(part, tokens.tolist(), strict=True):
            right += ids[1 : len(target) + 2] == [*target, EOS_ID]
    return right / len(examples)


@torch.inference_mode()
def certainty(model: Transformer, examples: list[Example]) -> tuple[float, float]:
    """Cross-entropy without smoothing (nats), and the labels' mean probability."""
    model.eval()
    source, decoder_input, labels = make_batch(examples)
    logits = model(source, decoder_input)
    given = logits.softmax(dim=-1).gather(-1, labels[..., None]).squeeze(-1)
    real = labels != model.config.pad_id
    return float(label_smoothed_loss(logits, labels, 0.0)), float(given[real].mean())


def run(variant: Variant, seed: int) -> dict:
    """Train one model and measure it."""
    examples = phrasebook_examples(sample_pairs(variant.examples, seed=0))
    held_out = phrasebook_examples(sample_pairs(1000, seed=1, held_out=True))
    model = variant.model(seed)
    training = dataclasses.replace(variant.training, seed=seed)
    started = time.process_time()
    losses = []
    step = variant.step(examples, seed)
    with (
        patch.object(loop, "paper_adam", variant.optimizer),
        patch.object(loop, "train_step", step),
    ):
        for metrics in train(model, examples, training):
            losses.append(metrics.loss)
    seconds = time.process_time() - started
    nats, probability = certainty(model, held_out)
    cut = range(0, len(losses) - THIN + 1, THIN)
    return {
        "loss": [rounded(statistics.fmean(losses[i : i + THIN])) for i in cut],
        "steps": len(losses),
        "exact": round(greedy_exact(model, held_out), 4),
        "exact_teacher_forced": round(exact_match(model, held_out), 4),
        "exact_on_training": round(exact_match(model, examples[:1000]), 4),
        "cross_entropy": rounded(nats),
        "label_probability": rounded(probability),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Make the runs that are asked for and not yet there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    choice = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "ablations.json"
    found = begun(path, variants={})
    found |= {
        "command": "python benchmarks/ablations.py",
        "training": dataclasses.asdict(HALF),
        "steps_to_a_point": THIN,
        "shock_at": SHOCK,
    }
    made = made_here()
    missing = [
        f"{name} {seed}"
        for seed in choice.seeds
        for name in choice.only
        if str(seed) not in found["variants"].get(name, {}).get("runs", {})
    ]
    for job in one_by_one(missing):
        name, seed = job.split()
        result = run(VARIANTS[name], int(seed))
        entry = found["variants"].setdefault(name, {"runs": {}})
        entry["description"] = VARIANTS[name].description
        entry["made"] = made
        entry["runs"][seed] = result
        keep(path, found)
        print(f"  loss {result['loss'][-1]}, exact {result['exact']:.1%}")


if __name__ == "__main__":
    main()
