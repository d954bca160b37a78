"""What each part since 2017 brings a small language model: chapter 19's table.

    python benchmarks/modern.py               # benchmarks/results/modern.json
    python benchmarks/modern.py --positions   # modern_positions.json
    python benchmarks/modern.py --steps 2400  # modern_longer.json: three of the models

Nine models of about the same number of parameters read chapters I to X of *Alice* a
character at a time: the parts of 2017, each later part alone, and all of them. Each is
trained with five learning rates; chapter XI chooses one, with which two more seeds are
trained. Chapter XII is the test. With `--positions` the models are that of 2017 with
other ways to tell positions. A run that was stopped goes on: what the file holds is not
trained again.
"""

import argparse
import math
import time

import torch
from race import RESULTS, begun, keep
from torch import Tensor, nn
from torch.nn import functional as F

from bookkit.texts import alice
from transformer.beyond.language_model import LanguageModelConfig
from transformer.beyond.modern import PARTS, exchange_parts
from transformer.beyond.plain_text import train_on_text
from transformer.decoding.step import evaluating
from transformer.multi_head import KeysValues, MultiHeadAttention
from transformer.positional import sinusoids

SIZES = {"d_model": 64, "num_heads": 4, "num_layers": 4, "dropout": 0.0}
D_FF, WINDOW, BATCH = 256, 64, 16
RATES, SEEDS = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3), (0, 1, 2)
ALL = ("pre-norm", *PARTS)
VARIANTS = ((), *((part,) for part in ALL), ALL)
LONGER = ((), ("rotary",), ALL)
POSITIONS = tuple(
    (way,) for way in ("none", "sines in every layer", "a number for each distance")
)


class SinesInEveryLayer(MultiHeadAttention):
    """Queries and keys of input and sinusoids: positions in each layer, no values."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        table = sinusoids(WINDOW, query.size(-1))[: query.size(1)]
        return super().forward(query + table, key + table, value, mask)


class Distances(MultiHeadAttention):
    """A learned number for each head and distance is added to the scores."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.distance = nn.Parameter(torch.zeros(num_heads, WINDOW))

    def attend(
        self, query: Tensor, keys_values: KeysValues, mask: Tensor | None = None
    ) -> Tensor:
        places = torch.arange(query.size(1))
        distance = (places[:, None] - places).clamp(min=0)
        added = self.distance[:, distance].masked_fill(~mask, -math.inf)
        queries = self._split(self.query_proj(query))
        heads = F.scaled_dot_product_attention(queries, *keys_values, added)
        return self.output_proj(heads.transpose(1, 2).flatten(2))


def model_of(parts: tuple[str, ...], vocab_size: int, d_ff: int) -> nn.Module:
    """A language model with these parts, and those of 2017 for the rest."""
    config = LanguageModelConfig(
        vocab_size,
        d_ff=d_ff,
        norm_first="pre-norm" in parts,
        max_length=WINDOW,
        **SIZES,
    )
    model = exchange_parts(config, [part for part in parts if part in PARTS])
    if parts in POSITIONS:
        model.position = nn.Identity()
    for layer in model.encoder.layers:
        other = {POSITIONS[1]: SinesInEveryLayer, POSITIONS[2]: Distances}.get(parts)
        if other:
            layer.self_attention = other(SIZES["d_model"], SIZES["num_heads"])
            for module in layer.self_attention.children():
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
    return model


def size(model: nn.Module) -> int:
    """How many parameters a model has."""
    return sum(weight.numel() for weight in model.parameters())


def equal_width(parts: tuple[str, ...], vocab_size: int) -> int:
    """The d_ff that brings a model nearest to the size of that of 2017."""
    target = size(model_of((), vocab_size, D_FF))
    one, two = (size(model_of(parts, vocab_size, d_ff)) for d_ff in (1, 2))
    return 1 + round((target - one) / (two - one))


def bits(model: nn.Module, ids: torch.Tensor) -> float:
    """Bits a character, read in windows side by side."""
    end = (len(ids) - 1) // WINDOW * WINDOW
    inputs, labels = ids[:end].view(-1, WINDOW), ids[1 : end + 1].view(-1, WINDOW)
    with evaluating(model):
        logits = model(inputs).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels.flatten())
    return loss.item() / math.log(2)


def main() -> None:
    """Train what is not yet in the file."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--steps", type=int, default=600)
    ask.add_argument("--positions", action="store_true")
    options = ask.parse_args()
    longer = options.steps > 600
    variants = POSITIONS if options.positions else LONGER if longer else VARIANTS
    name = f"modern{'_positions' * options.positions}{'_longer' * longer}.json"
    path = RESULTS / name
    torch.set_num_threads(1)

    training, held_out = alice()
    characters = sorted(set(training + held_out))
    cut = held_out.index("CHAPTER XII\n")
    train_ids, valid_ids, test_ids = (
        torch.tensor([characters.index(c) for c in text])
        for text in (training, held_out[:cut], held_out[cut:])
    )
    runs = begun(path, runs=[])["runs"]
    widths = {parts: equal_width(parts, len(characters)) for parts in variants}
    total = len(variants) * (len(RATES) + len(SEEDS) - 1)

    def best(parts: tuple[str, ...]) -> float:
        """The learning rate of these parts' lowest loss on chapter XI, first seed."""
        first = [
            r for r in runs if tuple(r["parts"]) == parts and r["seed"] == SEEDS[0]
        ]
        return float(min(first, key=lambda run: run["validation"])["rate"])

    todo: list[tuple[tuple[str, ...], float | None, int]]
    todo = [(parts, rate, SEEDS[0]) for rate in RATES for parts in variants]
    todo += [(parts, None, seed) for seed in SEEDS[1:] for parts in variants]
    for parts, asked, seed in todo:
        rate = best(parts) if asked is None else asked
        done = {(tuple(run["parts"]), run["rate"], run["seed"]) for run in runs}
        if (parts, rate, seed) in done:
            continue
        started = time.process_time()
        torch.manual_seed(seed)
        model = model_of(parts, len(characters), widths[parts])
        steps = train_on_text(
            model, train_ids, options.steps, BATCH, WINDOW, rate, seed
        )
        losses = [loss / math.log(2) for loss in steps]
        runs.append(
            {
                "parts": parts,
                "rate": rate,
                "seed": seed,
                "d_ff": widths[parts],
                "parameters": size(model),
                "training": round(sum(losses[-50:]) / len(losses[-50:]), 4),
                "validation": round(bits(model, valid_ids), 4),
                "test": round(bits(model, test_ids), 4),
            }
        )
        made = {"steps": options.steps, "window": WINDOW, "batch": BATCH, **SIZES}
        keep(path, {"made": made, "runs": runs})
        last, seconds = runs[-1], time.process_time() - started
        print(
            f"{len(runs)}/{total} {' + '.join(parts) or '2017'}, rate {rate}, "
            f"seed {seed}: {last['test']:.3f} bits, {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
