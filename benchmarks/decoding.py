"""How fast a translation is decoded, beside the libraries that a reader might pick.

    python benchmarks/decoding.py                    # half an hour on two cores
    python benchmarks/decoding.py --threads 1 --rounds 3 --lengths 16

Every contestant decodes the same number of tokens for the same sources: eos is masked
until then. CTranslate2 has our very weights, and must find our very tokens. Written
to benchmarks/results/decoding.json; `make bench` installs the others first.
"""

import argparse
import hashlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from compiled import CompiledDecoder
from peers import (
    SIZES,
    TorchTransformer,
    ctranslate2_model,
    marian,
    marians_search,
    never_end,
    our_model,
)
from peers import x_transformer as build_x_transformer
from race import lines, made, race, ratios, serve, write

from transformer.decoding import beam, search
from transformer.decoding.fast import FastDecoder
from transformer.text.words import BOS_ID, EOS_ID, PAD_ID

OURS, COMPILED = "ours", "compiled"
PEERS = ("MarianMT", "CTranslate2", "torch.nn.Transformer", "x-transformers")
SOURCE = 16  # tokens in every source
Decode = Callable[[], list[list[int]]]


def ours(size: str, sources: list[list[int]], length: int, beams: int) -> Decode:
    """The package's packed step."""
    decoder = FastDecoder(our_model(size, dropout=0.0).eval())
    return searching(decoder, sources, length, beams)


def compiled(size: str, sources: list[list[int]], length: int, beams: int) -> Decode:
    """The package's packed step, compiled ahead of time."""
    decoder = CompiledDecoder(our_model(size, dropout=0.0).eval())
    return searching(decoder, sources, length, beams)


def chapter_13(size: str, sources: list[list[int]], length: int, beams: int) -> Decode:
    """The package's plain cached step."""
    model = our_model(size, dropout=0.0).eval()
    return searching(model, sources, length, beams)


def searching(
    decoder: Any, sources: list[list[int]], length: int, beams: int
) -> Decode:
    """The package's searches, with eos masked as padding and bos are."""
    never_end()
    if beams == 1:
        return lambda: search.greedy_search(decoder, sources, length)
    return lambda: beam.beam_search(decoder, sources, length, beams)


def ctranslate2(
    size: str, sources: list[list[int]], length: int, beams: int, threads: int
) -> Decode:
    """CTranslate2 with our weights, in float32."""
    import ctranslate2

    folder = Path(tempfile.mkdtemp())
    ctranslate2_model(our_model(size, dropout=0.0), folder)
    translator = ctranslate2.Translator(
        str(folder), compute_type="float32", intra_threads=threads, inter_threads=1
    )
    tokens = [[str(i) for i in source] for source in sources]

    def decode() -> list[list[int]]:
        found = translator.translate_batch(
            tokens,
            beam_size=beams,
            length_penalty=0.6,
            min_decoding_length=length,
            max_decoding_length=length,
            suppress_sequences=[["<pad>"], ["<s>"]],
        )
        return [[int(token) for token in one.hypotheses[0]] for one in found]

    return decode


def huggingface(size: str, sources: list[list[int]], length: int, beams: int) -> Decode:
    """MarianMT's `generate`."""
    model = marian(size, dropout=0.0).eval()
    ids = torch.tensor(sources)

    @torch.inference_mode()
    def decode() -> list[list[int]]:
        return marians_search(model, ids, length, beams).tolist()

    return decode


def torch_loop(size: str, sources: list[list[int]], length: int, beams: int) -> Decode:
    """`torch.nn.Transformer` brings no search and no cache: the loop people write."""
    model = TorchTransformer(size, dropout=0.0).eval()
    ids = torch.tensor(sources)

    @torch.inference_mode()
    def decode() -> list[list[int]]:
        memory = model.stacks.encoder(model.embed(ids))
        tokens = torch.full((len(ids), 1), BOS_ID)
        for _ in range(length):
            mask = torch.ones(tokens.size(1), tokens.size(1), dtype=torch.bool).triu(1)
            x = model.stacks.decoder(model.embed(tokens), memory, tgt_mask=mask)
            logits = x[:, -1] @ model.embedding.weight.T
            logits[:, [PAD_ID, BOS_ID, EOS_ID]] = -torch.inf
            tokens = torch.cat((tokens, logits.argmax(dim=-1, keepdim=True)), dim=1)
        return tokens[:, 1:].tolist()

    return decode


def x_transformers(
    size: str, sources: list[list[int]], length: int, beams: int
) -> Decode:
    """x-transformers' `generate`, which samples at its least temperature."""
    model = build_x_transformer(size).eval()
    ids = torch.tensor(sources)
    start = torch.full((len(ids), 1), BOS_ID)

    @torch.inference_mode()
    def decode() -> list[list[int]]:
        return model.generate(ids, start, length, temperature=0.0).tolist()

    return decode


def take_turns(task: dict[str, Any]) -> None:
    """Be a contestant."""
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)  # before each model: ours and CTranslate2's are the same
    rng = random.Random(0)
    words = SIZES[task["size"]]["words"]
    sources = [
        [rng.randrange(3, words) for _ in range(SOURCE)] for _ in range(task["batch"])
    ]
    case = task["size"], sources, task["length"], task["beams"]
    decode = {
        OURS: lambda: ours(*case),
        COMPILED: lambda: compiled(*case),
        "chapter 13": lambda: chapter_13(*case),
        "CTranslate2": lambda: ctranslate2(*case, task["threads"]),
        "MarianMT": lambda: huggingface(*case),
        "torch.nn.Transformer": lambda: torch_loop(*case),
        "x-transformers": lambda: x_transformers(*case),
    }[task["name"]]()
    found = decode()
    if {len(ids) for ids in found} != {task["length"]}:
        lengths = [len(ids) for ids in found]
        raise ValueError(f"{task['name']} decoded {lengths} tokens")

    def turn() -> int:
        decode()
        return len(sources) * task["length"]

    serve(turn, {"said": digest(found)})


def digest(found: Sequence[Sequence[int]]) -> str:
    """A short name for all tokens of all results."""
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def cases(
    sizes: Sequence[str],
    lengths: Sequence[int],
    threads: Sequence[int],
    beams_of: Sequence[int],
    batches: Sequence[int],
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Every race to run, and who is in it."""
    for size, count, batch, beams, length in itertools.product(
        sizes, threads, batches, beams_of, lengths
    ):
        case = {"size": size, "threads": count, "batch": batch}
        names = [OURS, COMPILED, "chapter 13", *PEERS[:2]]
        if beams == 1 and batch == 1:
            names += PEERS[2:]
        if batch == 32 and length == 256:
            names.remove("chapter 13")
        yield {**case, "beams": beams, "length": length}, names


def main() -> None:
    """Race, and write what came of it."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--serve", help=argparse.SUPPRESS)
    ask.add_argument("--sizes", nargs="+", default=["tiny"])
    ask.add_argument("--lengths", nargs="+", type=int, default=[16, 64, 256])
    ask.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    ask.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    ask.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--only", nargs="+", help="these contestants, and ours")
    ask.add_argument("--out", default="decoding", help="results/NAME.json")
    options = ask.parse_args()
    if options.serve:
        take_turns(json.loads(options.serve))
        return
    started, runs = time.perf_counter(), []
    script = str(Path(__file__).resolve())
    for case, names in cases(
        options.sizes,
        options.lengths,
        options.threads,
        options.beams,
        options.batches,
    ):
        if options.only:
            names = [name for name in names if name in (OURS, COMPILED, *options.only)]
        tasks = {name: {**case, "name": name} for name in names}
        print(json.dumps(case), flush=True)
        field = race(script, tasks, case["threads"], False, options.rounds)
        print(*lines(field, OURS), sep="\n", flush=True)
        said = {
            field[name]["said"]
            for name in (OURS, COMPILED, "chapter 13", "CTranslate2")
            if name in field
        }
        runs.append(
            {
                **case,
                "same_words": len(said) == 1,
                "field": field,
                "ahead": ratios(field, OURS),
            }
        )
        minutes = (time.perf_counter() - started) / 60
        about = made(options.threads, minutes, "")
        write(options.out, {"made": about, "runs": runs})


if __name__ == "__main__":
    sys.exit(main())
