"""Is it one model's habit? Chapter 14's measures, on models trained from other seeds.

    python benchmarks/attention_maps.py                # the shipped one, seeds 1, 2, 3
    python benchmarks/attention_maps.py --models DIR   # keep what was trained in DIR

One thread; each seed trains the shipped recipe (about a minute on one free core) and is
measured in a few seconds. The measures are the chapter's own: its cells tagged
`measure` are run here. Every finished model is kept at once in
benchmarks/results/attention_maps.json; one that is there already is not made again.
"""

import argparse
from pathlib import Path
from typing import Any

import jupytext
import torch
from race import RESULTS, ROOT, begun, keep, made_here, one_by_one

from transformer import (
    Head,
    TrainingConfig,
    Translator,
    ablate_heads,
    attention_maps,
    make_batch,
    train,
)
from transformer.maps import all_heads
from transformer.phrasebook.grammar import (
    phrasebook_examples,
    phrasebook_tokenizers,
    sample_pairs,
)
from transformer.text.words import PAD_ID
from transformer.training.accuracy import exact_match
from transformer.training.loop import phrasebook_model

CHAPTER = ROOT / "book" / "14-attention-maps.md"
ASKS = 0.2  # the score from which on a head counts as an owner head


def chapters_measures() -> dict[str, Any]:
    """The functions in the chapter's cells tagged `measure`, and what they need."""
    space: dict[str, Any] = {
        "attention_maps": attention_maps,
        "ablate_heads": ablate_heads,
    }
    for cell in jupytext.read(CHAPTER, fmt="md:myst").cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and (not space.get("F") or "measure" in tags):
            exec(cell.source, space)  # the first code cell holds the imports
    return space


def trained(seed: int, folder: Path | None) -> Translator:
    """A translator trained as the shipped one, from another seed."""
    path = folder / f"seed-{seed}.safetensors" if folder else None
    if path and path.exists():
        return Translator.load(path)
    model = phrasebook_model(seed)
    examples = phrasebook_examples(sample_pairs(50_000, seed=0))
    for now in train(model, examples, TrainingConfig(seed=seed)):
        if now.step % 100 == 0:
            print(f"  seed {seed}: step {now.step} of {now.total_steps}", flush=True)
    translator = Translator(model, *phrasebook_tokenizers())
    if path:
        translator.save(path)
    return translator


def rounded(value: Any) -> Any:
    """Three digits are enough."""
    if isinstance(value, torch.Tensor):
        return rounded(value.tolist())
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def measured(translator: Translator, chapter: dict[str, Any]) -> dict[str, Any]:
    """What the chapter measures of one model."""
    model = translator.model
    held_out = phrasebook_examples(sample_pairs(300, seed=5, held_out=True))
    sample = make_batch(phrasebook_examples(sample_pairs(200, seed=7, held_out=None)))
    score = chapter["question_scores"]

    trips, at = chapter["with_roles"](chapter["trips"]())
    weights = attention_maps(model, trips.source, trips.decoder_input).encoder
    real = trips.source != PAD_ID
    note = {
        f"{query} asks {key}": rounded(
            score(weights, real, at[query], at[key]).max().item()
        )
        for query in ("where", "what")
        for key in at
        if query != key
    }

    owned, at = chapter["with_roles"](chapter["belongings"]())
    maps = attention_maps(model, owned.source, owned.decoder_input)
    whose = score(maps.encoder, owned.source != PAD_ID, at["whose"], at["who"])
    found = (whose > ASKS).nonzero().tolist()
    owner_heads = [Head("encoder", *each) for each in found]

    def his_or_her(*heads: Head) -> dict[str, float]:
        return chapter["his_or_her_without"](model, owned, *heads)

    def told_apart(*heads: Head) -> float:
        found = his_or_her(*heads)
        return rounded((found["his right"] + found["her right"]) / 2)

    alone = {}
    for head in all_heads(model):
        with ablate_heads(model, head):
            exact = rounded(exact_match(model, held_out))
        alone["{} {} {}".format(*head)] = [exact, told_apart(head)]

    position = torch.arange(owned.source.size(1))
    owner, sa = (position == at[role][:, None] for role in ("who", "whose"))
    trials = {
        "words": chapter["exchanged"](model, owned, sa & ~sa, words_so_far=True),
        "owner": chapter["exchanged"](model, owned, owner),
        "all but sa": chapter["exchanged"](model, owned, ~sa),
        "sa": chapter["exchanged"](model, owned, sa),
    }
    kept = (sample.labels != PAD_ID).flatten()
    return {
        "exact": rounded(exact_match(model, held_out)),
        "told_apart": told_apart(),
        "note": note,
        "whose": rounded(whose),
        "owner_heads": [list(head) for head in owner_heads],
        "told_apart_without_owner_heads": told_apart(*owner_heads),
        "without_owner_heads": rounded(his_or_her(*owner_heads)),
        "exchanged": rounded(trials),
        "known_of_africa": {
            role: rounded(shares)
            for role, shares in chapter["known_of_africa"](model).items()
        },
        "without_one_head": alone,
        "explained": {
            name: [rounded(part.flatten()[kept].mean().item()) for part in parts]
            for name, parts in chapter["compared"](model, sample).items()
        },
        "two_owners": rounded(chapter["two_owners"](translator)),
    }


def main() -> None:
    """Measure the models that are asked for and not yet there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--models", type=Path, help="folder to keep trained models in")
    choice = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "attention_maps.json"
    found = begun(path, runs={})
    found |= {
        "command": "python benchmarks/attention_maps.py",
        **made_here(),
        "asks_from": ASKS,
    }
    chapter = chapters_measures()
    names = ["shipped", *map(str, choice.seeds)]
    for name in one_by_one([name for name in names if name not in found["runs"]]):
        shipped = name == "shipped"
        translator = (
            Translator.phrasebook() if shipped else trained(int(name), choice.models)
        )
        run = found["runs"][name] = measured(translator, chapter)
        keep(path, found)
        print(f"  exact {run['exact']:.1%}, owner heads {len(run['owner_heads'])}")


if __name__ == "__main__":
    main()
