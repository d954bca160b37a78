"""What each part of the phrasebook's training is worth: train without it, and look.

    python benchmarks/ablations.py                  # all variants, seeds 0, 1 and 2
    python benchmarks/ablations.py --seeds 0 --only whole no-root

One thread, half the steps of the shipped recipe a run; half an hour in all on one free
core. Every finished run is kept at once in benchmarks/results/ablations.json, and a run
that is there already is not made again: stop it and start it as you like. Chapter 12
draws its figures from that file.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from race import processor  # noqa: E402

from bookkit import broken  # noqa: E402
from bookkit.broken import Half  # noqa: E402
from transformer.data import (  # noqa: E402
    BOS,
    EOS,
    Example,
    make_batch,
)
from transformer.masks import padding_mask  # noqa: E402
from transformer.model import Transformer  # noqa: E402
from transformer.training import (  # noqa: E402
    Recipe,
    exact_match,
    label_smoothed_loss,
    phrasebook_examples,
    phrasebook_model,
    train,
)

RESULTS = ROOT / "benchmarks" / "results" / "ablations.json"
THIN = 5  # steps to a stored point of a curve
SHOCK = 150  # the step whose batch goes wrong in two of the variants


class Constant(Recipe):
    """The same small learning rate from the first step to the last."""

    def rate(self, step: int, total: int, d_model: int) -> float:
        return 0.002


class Shocked(Transformer):
    """A model that one batch, and one only, finds with logits a thousand times off."""

    batches = 0

    def forward(self, source_ids: torch.Tensor, target_ids: torch.Tensor):
        logits = super().forward(source_ids, target_ids)
        if self.training:
            self.batches += 1
            if self.batches == SHOCK:
                return 1000 * logits
        return logits


HALF = Half(epochs=1)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One departure from the whole: of the model, the recipe or the lessons."""

    about: str
    config: dict = dataclasses.field(default_factory=dict)
    recipe: Recipe = HALF
    change: Callable[[Transformer], Transformer] = lambda model: model
    kind: type[Transformer] = Transformer
    lessons: int = 50_000

    def model(self, seed: int) -> Transformer:
        config = dataclasses.replace(phrasebook_model().config, **self.config)
        torch.manual_seed(seed)
        return self.change(self.kind(config))


def tie_output(model: Transformer) -> Transformer:
    """One table for the target's words as they come in and as they go out."""
    model.output.weight = model.target_embedding.table.weight
    return model


def torchs_own(model: Transformer) -> Transformer:
    """The first weights that `nn.Linear` chooses when nobody else does."""
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    return model


def times(factor: float) -> Callable[[Transformer], Transformer]:
    """First weights of another size."""

    @torch.no_grad()
    def scale(model: Transformer) -> Transformer:
        for part in model.modules():
            if isinstance(part, nn.Linear):
                part.weight *= factor
        return model

    return scale


PRE = {"norm_first": True}
FEW = {"lessons": 1000, "recipe": Half(epochs=48)}
VARIANTS = {
    "whole": Variant("as shipped, in half the steps"),
    "no-root": Variant("scores not divided by √d_k", change=broken.without_root),
    "no-causal-mask": Variant(
        "the decoder sees the words to come", change=broken.without_causal_mask
    ),
    "no-positions": Variant("words without places", change=broken.without_positions),
    "no-residuals": Variant("sublayers alone", change=broken.without_residuals),
    "no-warmup": Variant(
        "full rate from the first step", recipe=broken.without_warmup(HALF)
    ),
    "pre-norm": Variant("norm before the sublayer", config=PRE),
    "pre-norm-no-warmup": Variant(
        "pre-norm, full rate at once", PRE, broken.without_warmup(HALF)
    ),
    "no-cool-down": Variant(
        "the paper's rate to the end", recipe=Half(epochs=1, cool_down=0.0)
    ),
    "constant": Variant("a rate of 0.002 throughout", recipe=Constant(epochs=1)),
    "no-clipping": Variant(
        "gradients as they come", recipe=Half(epochs=1, max_norm=float("inf"))
    ),
    "shock": Variant("one bad batch, clipped", kind=Shocked),
    "shock-no-clipping": Variant(
        "one bad batch, not clipped",
        kind=Shocked,
        recipe=Half(epochs=1, max_norm=float("inf")),
    ),
    "no-smoothing": Variant(
        "cross-entropy as it is", recipe=Half(epochs=1, smoothing=0.0)
    ),
    "dropout": Variant("dropout 0.1", {"dropout": 0.1}),
    "few": Variant("a thousand sentences, again and again", **FEW),
    "few-dropout": Variant("a thousand, dropout 0.3", {"dropout": 0.3}, **FEW),
    "tied-output": Variant("output table = target table", change=tie_output),
    "torch-init": Variant("torch's own first weights", change=torchs_own),
    "large-init": Variant("first weights five times Xavier's", change=times(5)),
}


@torch.inference_mode()
def spoken_exactly(model: Transformer, examples: list[Example]) -> float:
    """The share that the model itself says exactly, word after word, from nothing."""
    model.eval()
    right = 0
    for start in range(0, len(examples), 250):
        part = examples[start : start + 250]
        batch = make_batch(part)
        memory = model.encode(batch.source)
        mask = padding_mask(batch.source, model.config.pad_id)
        said = torch.full((len(part), 1), BOS)
        for _ in range(batch.wanted.size(1)):
            hidden = model.decode(said, memory, mask)[:, -1:]
            said = torch.cat([said, model.output(hidden).argmax(dim=-1)], dim=1)
        for (_, target), ids in zip(part, said.tolist(), strict=True):
            right += ids[1 : len(target) + 2] == [*target, EOS]
    return right / len(examples)


@torch.inference_mode()
def surprise(model: Transformer, examples: list[Example]) -> tuple[float, float]:
    """Plain cross-entropy (nats), and the mean probability of the right word."""
    model.eval()
    source, given, wanted = make_batch(examples)
    logits = model(source, given)
    chance = logits.softmax(dim=-1).gather(-1, wanted[..., None]).squeeze(-1)
    real = wanted != model.config.pad_id
    return float(label_smoothed_loss(logits, wanted, 0.0)), float(chance[real].mean())


def run(variant: Variant, seed: int) -> dict:
    """Train one model, examine it, and say how it went."""
    lessons = phrasebook_examples(variant.lessons, seed=0)
    held_out = phrasebook_examples(1000, seed=1, held_out=True)
    model = variant.model(seed)
    started = time.process_time()
    losses, gradients = [], []
    for now in train(model, lessons, variant.recipe, seed):
        losses.append(now.loss)
        gradients.append(now.gradient)
    seconds = time.process_time() - started
    nats, chance = surprise(model, held_out)
    cut = range(0, len(losses) - THIN + 1, THIN)
    return {
        "loss": [round(statistics.fmean(losses[i : i + THIN]), 4) for i in cut],
        "steps": len(losses),
        "exact": round(spoken_exactly(model, held_out), 4),
        "exact_given_the_truth": round(exact_match(model, held_out), 4),
        "exact_on_lessons": round(exact_match(model, lessons[:1000]), 4),
        "surprise": round(nats, 4),
        "chance_of_right_word": round(chance, 4),
        "longest_gradient": round(max(gradients), 3),
        "share_clipped": round(
            statistics.fmean(g > variant.recipe.max_norm for g in gradients), 4
        ),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "seconds": round(seconds, 1),
    }


def keep(path: Path, found: dict) -> None:
    """Write the file whole, or leave the old one."""
    beside = path.with_suffix(".part")
    text = json.dumps(found, indent=1)
    text = re.sub(r"(?<=\d),\s+(?=[\d-])", ", ", text)  # a curve is one line
    beside.write_text(text + "\n", encoding="utf-8")
    os.replace(beside, path)


def main() -> None:
    """Make the runs that are asked for and not yet there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    choice = parser.parse_args()
    torch.set_num_threads(1)
    found: dict = {"variants": {}}
    if choice.out.exists():
        found = json.loads(choice.out.read_text(encoding="utf-8"))
    found |= {
        "command": "python benchmarks/ablations.py",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{processor()}, one thread",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "recipe": dataclasses.asdict(HALF),
        "steps_to_a_point": THIN,
        "shock_at": SHOCK,
    }
    choice.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = [(seed, name) for seed in choice.seeds for name in choice.only]
    runs = [
        (seed, name)
        for seed, name in wanted
        if str(seed) not in found["variants"].get(name, {}).get("runs", {})
    ]
    print(f"{len(wanted) - len(runs)} of {len(wanted)} runs are there already")
    started = time.monotonic()
    for done, (seed, name) in enumerate(runs, start=1):
        result = run(VARIANTS[name], seed)
        entry = found["variants"].setdefault(name, {"runs": {}})
        entry["about"] = VARIANTS[name].about
        entry["runs"][str(seed)] = result
        keep(choice.out, found)
        left = (time.monotonic() - started) / done * (len(runs) - done)
        print(
            f"{done:3}/{len(runs)}  {name:20} seed {seed}  "
            f"loss {result['loss'][-1]:.3f}  exact {result['exact']:6.1%}  "
            f"about {left / 60:.0f} min left",
            flush=True,
        )


if __name__ == "__main__":
    main()
