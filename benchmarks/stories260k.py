"""A real Llama of 260,032 numbers in the class that chapter 19 builds.

    python benchmarks/stories260k.py --data FOLDER

The folder holds `stories260K.bin` and `tok512.bin`, which Andrej Karpathy published as
*tinyllamas* (karpathy/tinyllamas on the hub of the library transformers, in the folder
stories260K). The script compares logits with those of the library's Llama, lets the
model tell its story, looks at one head, and takes the parts of chapter 19 out of the
trained model, one at a time. It takes about a minute on one free core.
"""

import argparse
import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from race import RESULTS, keep, made_here
from torch import nn
from torch.nn import functional as F

from transformer.beyond.language_model import PromptDecoder
from transformer.beyond.llama import Llama
from transformer.decoding.search import greedy_search
from transformer.maps import self_attention_maps
from transformer.pretrained.llama import to_llama
from transformer.pretrained.llama2c import (
    Llama2cTokenizer,
    from_llama2c,
)

TOKENS = 256  # as many as llama2.c writes, where it is documented
DOCUMENTED = (  # in its doc/stories260K.md, for a temperature of 0
    "Once upon a time, there was a little girl named Lily. She loved to play outside "
    "in the park. One day, she saw a big, red ball. She wanted to play with it, but it "
    "was too high.\nLily's mom said, \"Lily, let's go to the park.\" Lily was sad and "
    "didn't know what to do. She said, \"I want to play with your ball, but I can't "
    "find it.\"\nLily was sad and didn't know what to do. She said, \"I'm sorry, Lily. "
    "I didn't know what to do.\"\nLily didn't want to help her mom, so she said, \"I'm "
    "sorry, mom. I didn't know what to do.\" Her mom said, \"Don't worry, Lily. We can "
    "help you."
)
LOOKED_AT = "Once upon a time, there was a little girl named Lily. She"


def compared(model: Llama) -> dict[str, Any]:
    """Logits and greedy tokens of ours and of the library's Llama."""
    import transformers

    transformers.logging.set_verbosity_error()
    own = model.config
    config = transformers.LlamaConfig(
        vocab_size=own.vocab_size,
        hidden_size=own.d_model,
        intermediate_size=own.d_ff,
        num_hidden_layers=own.num_layers,
        num_attention_heads=own.num_heads,
        num_key_value_heads=own.num_kv_heads,
        max_position_embeddings=own.max_length,
        rms_norm_eps=own.norm_eps,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=1,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.load_state_dict(to_llama(model))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(own.vocab_size, (8, own.max_length), generator=generator)
    with torch.no_grad():
        logits = theirs(ids).logits
        difference = (model(ids) - logits).abs().max().item()
    return {
        "windows": list(ids.shape),
        "largest_difference": difference,
        "largest_logit": round(logits.abs().max().item(), 2),
        "transformers": transformers.__version__,
    }


def without_rotation(model: Llama) -> None:
    """No position enters any score."""
    for layer in model.encoder.layers:
        layer.self_attention.rotary = None


def with_mean_subtracted(model: Llama) -> None:
    """Layer norm with the trained gains, in place of RMSNorm."""
    owners = [each for layer in model.encoder.layers for each in layer.residuals]
    for owner in (*owners, model.encoder):
        norm = nn.LayerNorm(model.config.d_model, owner.norm.eps, bias=False)
        norm.weight = owner.norm.weight
        owner.norm = norm


def with_open_gate(model: Llama) -> None:
    """Each gate lets everything through, whatever it reads."""
    for layer in model.encoder.layers:
        own = layer.feed_forward
        own.forward = lambda x, own=own: own.contract(own.expand(x))


def with_own_copies(model: Llama) -> None:
    """Each query head gets keys and values of its own, copies of those it shared."""
    heads, sets = model.config.num_heads, model.config.num_kv_heads
    for layer in model.encoder.layers:
        for part in (layer.self_attention.key_proj, layer.self_attention.value_proj):
            rows = part.weight.detach().unflatten(0, (sets, -1))
            rows = rows.repeat_interleave(heads // sets, dim=0).flatten(0, 1)
            part.weight, part.out_features = nn.Parameter(rows), len(rows)


def with_biases(model: Llama) -> None:
    """Each linear map gets a bias, of zeros: in training there was none to learn."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.bias = nn.Parameter(torch.zeros(module.out_features))


CHANGES: dict[str, Callable[[Llama], None]] = {
    "as it is": lambda model: None,
    "rotation": without_rotation,
    "RMSNorm": with_mean_subtracted,
    "gate": with_open_gate,
    "grouped queries": with_own_copies,
    "no biases": with_biases,
}


def measured(
    model: Llama, tokenizer: Llama2cTokenizer, story: list[int]
) -> dict[str, Any]:
    """How surprised a model is by the story, what it tells, and what it caches."""
    ids = torch.tensor([[1, *story]])
    with torch.no_grad():
        logits = model(ids[:, :-1])[0]
        keys = model.encoder.layers[0].self_attention.keys_values(
            *[torch.zeros(1, 1, model.config.d_model)] * 2
        )
    bits = F.cross_entropy(logits, ids[0, 1:]) / math.log(2)
    begun: list[int] = []
    with torch.no_grad():  # without a cache: some of these parts are not the package's
        for _ in range(40):
            begun.append(int(model(torch.tensor([[1, *begun]]))[0, -1].argmax()))
    return {
        "bits": round(bits.item(), 3),
        "tells": tokenizer.decode(begun),
        "cached": 2 * keys.keys.numel(),  # numbers a token and layer
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }


def one_head(model: Llama, tokenizer: Llama2cTokenizer) -> dict[str, Any]:
    """The head in which *She* attends most to the tokens of *Lily*."""
    ids = tokenizer.encode(LOOKED_AT)
    tokens = ["<s>", *(tokenizer.pieces[index].decode() for index in ids[1:])]
    place = next(
        start
        for start in range(len(ids))
        if "".join(tokens[start:]).startswith((" Lily", "Lily"))
    )
    name = range(place, tokens.index(".", place))
    weights = self_attention_maps(model, torch.tensor([ids]))[0]
    given = weights[:, :, -1, list(name)].sum(dim=-1)  # (layers, heads)
    layer, head = divmod(int(given.argmax()), given.size(1))
    return {
        "tokens": tokens,
        "name": list(name),
        "layer": layer,
        "head": head,
        "given": round(given.max().item(), 3),
        "weights": [
            [round(x, 3) for x in row] for row in weights[layer, head].tolist()
        ],
    }


def main() -> None:
    """Measure, and write the file."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--data", type=Path, required=True)
    options = ask.parse_args()
    torch.set_num_threads(1)
    model = from_llama2c(options.data / "stories260K.bin")
    size = model.config.vocab_size
    tokenizer = Llama2cTokenizer.load(options.data / "tok512.bin", size)
    (story,) = greedy_search(PromptDecoder(model), [[tokenizer.bos_id]], TOKENS)
    changed = {}
    for name, change in CHANGES.items():
        other = copy.deepcopy(model)
        change(other)
        changed[name] = measured(other, tokenizer, story)
        print(name, changed[name], flush=True)
    told = tokenizer.decode(story)
    found = {
        "command": "python benchmarks/stories260k.py --data FOLDER",
        **made_here(),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "against_transformers": compared(model),
        "story": told,
        "tokens": len(story),
        "is_the_documented_story": told == DOCUMENTED,
        "without": changed,
        "head": one_head(model, tokenizer),
    }
    keep(RESULTS / "stories260k.json", found)
    print({name: x for name, x in found.items() if name not in ("without", "head")})


if __name__ == "__main__":
    main()
