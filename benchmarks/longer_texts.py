"""Do small models read texts longer than those they were trained on? Chapter 19.

    python benchmarks/longer_texts.py

The language model of 2017 and the same with rotary positions, as in `modern.py`, are
trained on windows of 64 characters of *Alice*, three seeds each, at the learning rates
that chapter XI chose there. Then the next character after 16 to 512 others is
predicted, in the same places of chapters XI and XII.
"""

import json
import math
from dataclasses import replace

import torch
from modern import BATCH, SEEDS, SIZES, WINDOW, equal_width, model_of
from race import RESULTS, keep

from bookkit.texts import alice
from transformer.beyond.language_model import LanguageModel
from transformer.beyond.modern import PARTS, exchange_parts
from transformer.beyond.plain_text import context_losses, train_on_text

STEPS, CONTEXTS, PLACES = 600, (16, 32, 64, 96, 128, 256, 512), 1000


def chosen_rate(parts: tuple[str, ...]) -> float:
    """The rate of the lowest loss on chapter XI in `modern.json`, first seed."""
    runs = json.loads((RESULTS / "modern.json").read_text("utf-8"))["runs"]
    first = [r for r in runs if tuple(r["parts"]) == parts and r["seed"] == SEEDS[0]]
    return float(min(first, key=lambda run: run["validation"])["rate"])


def with_room(model: LanguageModel, parts: tuple[str, ...]) -> LanguageModel:
    """The same model, for texts of 512."""
    config = replace(model.config, max_length=max(CONTEXTS))
    longer = exchange_parts(config, [part for part in parts if part in PARTS])
    weights = model.state_dict()
    for name, buffer in longer.named_buffers():
        weights[name] = buffer  # a row for each place, and here are more places
    longer.load_state_dict(weights)
    return longer


def main() -> None:
    """Train, measure, and write the file anew after each."""
    torch.set_num_threads(1)

    training, held_out = alice()
    characters = sorted(set(training + held_out))
    train_ids, held_out_ids = (
        torch.tensor([characters.index(c) for c in text])
        for text in (training, held_out)
    )
    step = (len(held_out_ids) - max(CONTEXTS)) // PLACES
    places = torch.arange(max(CONTEXTS), len(held_out_ids), step)[:PLACES]
    made = {"steps": STEPS, "window": WINDOW, "batch": BATCH, "places": PLACES, **SIZES}
    runs = []
    for parts in ((), ("rotary",)):
        rate = chosen_rate(parts)
        for seed in SEEDS:
            torch.manual_seed(seed)
            width = equal_width(parts, len(characters))
            model = model_of(parts, len(characters), width)
            for _ in train_on_text(model, train_ids, STEPS, BATCH, WINDOW, rate, seed):
                pass
            longer = with_room(model, parts)
            bits = {
                context: round(
                    context_losses(longer, held_out_ids, places, context).mean().item()
                    / math.log(2),
                    4,
                )
                for context in CONTEXTS
            }
            runs.append({"parts": parts, "seed": seed, "rate": rate, "bits": bits})
            keep(RESULTS / "longer_texts.json", {"made": made, "runs": runs})
            print(runs[-1], flush=True)


if __name__ == "__main__":
    main()
