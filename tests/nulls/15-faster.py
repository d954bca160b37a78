# %% claim: Forward, a token takes two operations
# null: attention's products are not counted
forward = {n: 2 * in_products * n for n in forward}
backward = {n: 2 * count for n, count in forward.items()}

# null: each token attends to half of the others
forward = {n: n * (2 * in_products + 12 * 2 * 768 * n) for n in forward}
backward = {n: 2 * count for n, count in forward.items()}

# null: the backward pass takes as many as the forward pass
backward = forward

# %% claim: At 1,024 tokens attention
# null: attention grows as the linear maps do
for point in growth["growth"]["length"]:
    point["seconds"]["attention"] = point["seconds"]["linear"]

# null: the vocabulary's product does not grow
words["seconds"]["vocabulary"] = at["vocabulary"][1000]["seconds"]["vocabulary"]

# null: a token costs as much in any crowd
one = many_rows

# %% claim: Autograd's gradient of the loss
# null: no smoothing: the label alone
q = F.one_hot(torch.tensor(1), 4).float()

# null: the gradient for one label of another place
q = q.roll(1)

# %% claim: In float64, `chunked_loss`
# null: no smoothing in chunks
chunks = chunked_loss
chunked_loss = lambda hidden, weight, labels, **options: chunks(
    hidden, weight, labels, 0.0, **options
)

# null: padding counts
chunks = chunked_loss
chunked_loss = lambda hidden, weight, labels, **options: chunks(
    hidden, weight, labels, pad_id=-1, **options
)

# null: the loop keeps p, without q


def loss_in_chunks(hidden, weight, labels, chunk_size):
    p = (hidden @ weight.T).softmax(dim=-1)
    loss = F.cross_entropy(hidden @ weight.T, labels, reduction="sum")
    return loss, p @ weight, p.T @ hidden


# %% claim: Four times the targets
# null: chunks make no difference
chunked_loss = plainly

# null: a chunk as large as the input
chunks = chunked_loss
chunked_loss = lambda hidden, weight, labels: chunks(
    hidden, weight, labels, chunk_size=labels.numel()
)

# %% claim: The step's loss equals
# null: the padding of the source is attended to
padding_mask = lambda ids, pad_id: torch.ones_like(ids, dtype=torch.bool)[:, None, None]

# null: other weights
seeds = iter((1, 0))
step_loss = lambda model, batch, loss=step_loss: loss(phrasebook_model(seed=1), batch)

# %% claim: In blocks of 1, 2, 7 or 100
# null: earlier sums do not shrink


def attention_in_blocks(query, keys, values, size):
    total, output = 0.0, 0.0
    for key, value in zip(keys.split(size), values.split(size), strict=True):
        scores = key @ query / math.sqrt(len(query))
        weights = (scores - scores.max()).exp()
        total, output = total + weights.sum(), output + weights @ value
        yield scores.max(), total, output / total


# null: powers of the scores themselves


def attention_in_blocks(query, keys, values, size):
    total, output = 0.0, 0.0
    for key, value in zip(keys.split(size), values.split(size), strict=True):
        weights = (key @ query / math.sqrt(len(query))).exp()
        total, output = total + weights.sum(), output + weights @ value
        yield torch.tensor(0.0), total, output / total


# %% claim: From 1,024 to 2,048
# null: the fused kernel keeps the weights too
kept_for["fused"] = kept_for["written out"]

# null: what is kept grows with the length alone
kept_for["written out"] = kept_for["fused"]

# null: attention without its scale
written_out = lambda query, key, value: (query @ key.mT).softmax(dim=-1) @ value

# %% claim: Batches of similar length
# null: similar length makes no difference: random batches
bucketed = at_random

# null: random batches waste as little
at_random = bucketed

# %% claim: The fast step calls fewer
# null: it calls as many
operations["fast"] = operations["plain"]

# %% claim: As shipped, the loss in chunks
# null: each step brings the same factor
rates_of, steps = tiny, list(rungs)


def tiny(**settings):
    rates = rates_of(**settings)
    factor = (rates["ours"] / rates["plain"]) ** (1 / (len(steps) - 1))
    return {name: rates["plain"] * factor**i for i, name in enumerate(steps)}


# null: memory kept makes no difference
rates_of = tiny
tiny = lambda kept: rates_of()

# %% claim: The chunked loss takes less
# null: chunks make no difference
took["chunked"] = took["plain"]

# %% claim: In batches of random lengths
# null: the order makes no difference
mixed = shipped

# %% claim: Keeping memory makes
# null: memory kept makes no difference
kept = shipped

# null: it brings ours what it brings MarianMT
kept = {**kept, "ours": kept["MarianMT"]}

# %% claim: At width 128, as shipped, ours
# null: as fast as the libraries
lead = lambda run: 1.0

# null: the plain loss makes no difference
rates_of = tiny
tiny = lambda *precision, **settings: {
    **rates_of(*precision, **settings),
    "fused attention": rates_of(*precision, **settings)["ours"],
}

# null: as much memory as the libraries
for run in ours_in.values():
    run["field"]["ours"]["peak_mb"] = run["field"]["MarianMT"]["peak_mb"]

# null: ours is behind at every width
lead_of = lead
lead = lambda run: lead_of(run) if run["size"] == "tiny" else 0.9

# %% claim: In every race the fast step
# null: as fast as MarianMT, as CTranslate2
for run in decoding:
    run["ahead"] = {name: {"median": 1.0} for name in run["ahead"]}

# null: other words
decoding[0]["same_words"] = False

# %% claim: From 64 to 256 tokens our speed
# null: the cache makes no difference
falls = dict.fromkeys(falls, falls["ours", 1])

# null: no cache: ours falls as the uncached one
falls = dict.fromkeys(falls, falls["torch.nn.Transformer", 1])

# %% claim: Thirty-two rows cost less
# null: in proportion to the rows
costs = {count: float(count) for count in costs}

# null: a sentence costs the same in any company
speeds = speeds_of
speeds_of = lambda runs, **case: speeds(runs, **{**case, "batch": 1})

# %% claim: As written our step
# null: all three are alike
as_written = dict.fromkeys(as_written, as_written["ours"])

# null: no change brings anything
compiled = dict.fromkeys(compiled, as_written["ours"])

# null: dropout costs nothing
compiled = {**compiled, "without dropout": compiled["loss"]}

# null: the libraries gain as much by the compiler
compiled = {**compiled, **dict.fromkeys(LIBRARIES, compiled["loss"])}

# %% claim: With 256 rows at a time our loss
# null: chunks of any size are alike
loss_rows["ms"] = dict.fromkeys(loss_rows["ms"], 7.0)

# %% claim: At 32 tokens the memory-efficient kernel
# null: one kernel is as fast as the other
attention = {
    length: {mask: dict.fromkeys(kinds, 1.0) for mask, kinds in masks.items()}
    for length, masks in attention.items()
}

# null: a mask costs nothing
attention[1024]["is_causal"] = attention[1024]["causal and padding mask"]

# %% claim: For one sentence the graph
# null: a graph is as fast as Python
gpu_decoding = {
    name: {**found, "CUDA graph": found["greedy"]}
    for name, found in gpu_decoding.items()
}

# null: both libraries' beams are alike
gpu_decoding = {
    name: {**found, "beam 4": found["MarianMT, beam 4"]}
    for name, found in gpu_decoding.items()
}

# %% claim: Under autocast a trained
# null: autocast makes no difference
bf16_autocast = lambda device: torch.no_grad()

# null: the whole loss in bfloat16
loss_of = step_loss
step_loss = lambda model, batch: (
    loss_of(model, batch).bfloat16()
    if torch.is_autocast_enabled("cpu")
    else loss_of(model, batch)
)

# null: numbers of three significant bits, where bfloat16 has eight
from contextlib import contextmanager

_autocast = bf16_autocast


@contextmanager
def bf16_autocast(device):
    """Autocast over weights rounded to three bits."""
    with torch.no_grad():
        for weight in trained.parameters():
            mantissa, exponent = torch.frexp(weight)
            weight.copy_(torch.ldexp((mantissa * 8).round() / 8, exponent))
    with _autocast(device):
        yield


# %% claim: The flag makes the step at least
# null: a flag and a mask take as long
results = lambda name: {
    "causal": [
        {"length": n, "seconds": {"mask": 1.0, "flag": 1.0}} for n in (1024, 4096)
    ]
}
