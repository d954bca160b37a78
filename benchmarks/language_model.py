"""Chapter 17's language model and its n-grams: other seeds, and more text.

    python benchmarks/language_model.py --data FOLDER
    python benchmarks/language_model.py --data FOLDER --quick --out x.json

FOLDER has Multi30k, whose English captions are the larger text. The chapter's model is
trained on *Alice* with three seeds, and on growing parts of the captions; then a larger
one on all of them. Models are measured by context, n-grams by order, in bits a token,
on held-out text. Last, a GPT-2 of 124 million random weights is compared with that of
transformers. One thread, a quarter of an hour in all on one free core. A finished run
is kept at once in benchmarks/results/language_model.json, with its date, and not made
again.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from race import RESULTS, begun, keep, made_here
from torch import Tensor

from bookkit.texts import alice
from transformer.beyond.language_model import (
    LanguageModel,
    LanguageModelConfig,
    PromptDecoder,
)
from transformer.beyond.ngrams import NGramModel
from transformer.beyond.plain_text import context_losses, train_on_text
from transformer.decoding.search import greedy_search
from transformer.pretrained.gpt2 import from_gpt2, to_gpt2
from transformer.text.multi30k import read_pairs

ORDERS = range(1, 11)
CONTEXTS = (1, 2, 3, 4, 6, 8, 16, 32, 64)
SMALL = {"d_model": 96, "num_heads": 4, "num_layers": 2, "d_ff": 384}
LARGE = {"d_model": 128, "num_heads": 4, "num_layers": 4, "d_ff": 512}
STEPS, BATCH_SIZE = 1600, 12  # the chapter's


def captions(folder: Path) -> tuple[str, str]:
    """The English captions, one a line: of the training set, of the validation set."""
    train, val = (
        "".join(
            f"{english}\n"
            for english, _ in read_pairs(folder, "tok", split, "en", "de")
        )
        for split in ("train", "val")
    )
    return train, val


def train_and_measure(
    texts: tuple[str, str], sizes: dict, steps: int, batch_size: int, seed: int
) -> dict:
    """One model: bits a character by context, and its largest induction score."""
    characters = sorted(set("".join(texts)))
    number = {character: i for i, character in enumerate(characters)}
    train, held_out = (torch.tensor([number[each] for each in text]) for text in texts)
    torch.manual_seed(seed)
    config = LanguageModelConfig(len(characters), **sizes, dropout=0.0, max_length=64)
    model = LanguageModel(config)
    started = time.process_time()
    for step, loss in enumerate(
        train_on_text(model, train, steps, batch_size, seed=seed), 1
    ):
        if step % 200 == 0:
            print(f"    step {step:5}  {loss / math.log(2):.2f} bits", flush=True)
    seconds = time.process_time() - started
    targets = places(held_out)
    bits = {
        context: context_losses(model, held_out, targets, context).mean().item()
        / math.log(2)
        for context in CONTEXTS
    }
    return {
        "bits": {context: round(found, 4) for context, found in bits.items()},
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "characters_read": steps * batch_size * 64,
        "induction": round(induction(model, len(characters)), 4),
        "seconds": round(seconds, 1),
    }


def places(text: Tensor | str) -> Tensor:
    """The places in a held-out text that every model is measured at."""
    return torch.arange(64, len(text), 5)[:5000]


def induction(model: LanguageModel, vocab_size: int) -> float:
    """The largest induction score of a head: see the chapter."""
    generator = torch.Generator().manual_seed(0)
    block = torch.randint(vocab_size, (100, 32), generator=generator)
    found = []
    hooks = [
        layer.self_attention.register_forward_pre_hook(
            lambda attention, inputs: found.append(
                attention.weights(inputs[0], inputs[1], inputs[3])
            )
        )
        for layer in model.encoder.layers
    ]
    with torch.no_grad():
        model.eval()(block.repeat(1, 2))
    for hook in hooks:
        hook.remove()
    stripes = torch.stack(found)[..., 32:, :].diagonal(offset=1, dim1=-2, dim2=-1)
    return stripes.mean(dim=(1, -1)).max().item()


def count(texts: tuple[str, str]) -> dict:
    """Bits a character of n-gram models with Kneser-Ney smoothing, by order."""
    train, held_out = texts
    size, at = len(set("".join(texts))), places(held_out).tolist()
    found = {}
    for order in ORDERS:
        model = NGramModel(train, order, size)
        surprise = sum(-math.log2(model.probability(held_out, i)) for i in at)
        found[order] = round(surprise / len(at), 4)
    return {
        "bits": found,
        "smoothing": f"Kneser-Ney, discount {model.discount}",
        "characters": len(train),
        "vocabulary": size,
    }


def gpt2(sizes: dict) -> dict:
    """GPT-2 of transformers and ours with the same random weights, compared."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(**sizes, initializer_range=0.06)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ours = from_gpt2(theirs.state_dict(), config)
    ids = torch.randint(config.vocab_size, (2, 64))
    with torch.no_grad():
        logits = theirs(ids).logits
        difference = (ours(ids) - logits).abs().max().item()
    generated = theirs.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=16,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[:, 64:].tolist()
    found = greedy_search(PromptDecoder(ours), ids, 16)
    back, state = to_gpt2(ours), theirs.state_dict()
    return {
        "parameters": sum(weight.numel() for weight in ours.parameters()),
        "largest_difference": difference,
        "spread_of_logits": round(logits.std().item(), 3),
        "same_tokens": found == generated,
        "different_tokens": len({token for row in found for token in row}),
        "weights_come_back": all(back[name].equal(state[name]) for name in state),
        "transformers": transformers.__version__,
    }


def main() -> None:
    """Make the runs that are not yet there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    path = RESULTS / "language_model.json"
    parser.add_argument("--out", type=Path, default=path)
    parser.add_argument("--quick", action="store_true", help="a few steps of each")
    choice = parser.parse_args()
    torch.set_num_threads(1)
    found = begun(choice.out, runs={})
    found |= {
        "command": "python benchmarks/language_model.py --data FOLDER",
        "steps": STEPS,
        "small": SMALL,
        "large": LARGE,
    }
    made = made_here()  # of each run: they need not be of one day
    train, val = captions(choice.data)
    steps, large_steps = (3, 3) if choice.quick else (STEPS, 3200)
    sizes = (120_000, 480_000, len(train))
    texts = {"alice": alice()} | {
        f"captions {size}": (train[:size], val) for size in sizes
    }
    jobs = {
        f"alice seed {seed}": (texts["alice"], SMALL, steps, BATCH_SIZE, seed)
        for seed in (0, 1, 2)
    }
    jobs |= {
        name: (texts[name], SMALL, steps, BATCH_SIZE, 0)
        for name in texts
        if name != "alice"
    }
    jobs["captions large"] = (
        texts[f"captions {len(train)}"],
        LARGE,
        large_steps,
        32,
        0,
    )
    for name, text in texts.items():
        if f"n-grams {name}" not in found["runs"]:
            print(f"n-grams, {name}", flush=True)
            found["runs"][f"n-grams {name}"] = count(text) | made
            keep(choice.out, found)
    for name, job in jobs.items():
        if name not in found["runs"]:
            print(name, flush=True)
            found["runs"][name] = train_and_measure(*job) | made
            keep(choice.out, found)
            print(f"  {found['runs'][name]['bits']}")

    if "gpt2" not in found["runs"]:
        print("GPT-2", flush=True)
        shape = {"n_layer": 2} if choice.quick else {}
        found["runs"]["gpt2"] = gpt2(shape) | made
        keep(choice.out, found)


if __name__ == "__main__":
    main()
