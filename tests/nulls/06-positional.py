# %% claim: In all 120 orders of five words, the outputs are the same
# null: positions are added
from transformer.positional import PositionalEncoding

embed_words, places = embed, PositionalEncoding(16)
embed = lambda ids: places(embed_words(ids))

# null: a causal mask
stack_of = stack
stack = lambda x: stack_of(x, torch.ones(5, 5, dtype=torch.bool).tril())

# null: a constant: all outputs alike
stack_of = stack
stack = lambda x: stack_of(x).mean(dim=1, keepdim=True).expand_as(x)

# %% claim: Under a causal mask, shuffled words do not give shuffled
# null: the mask makes no difference
stack_of = stack
stack = lambda x, mask: stack_of(x)

# %% claim: With 100 added to every feature, two different words have a
# null: next to nothing added
embed_words = embed
embed = lambda ids: 10_000 * embed_words(ids)

# null: Gray's code: neighbours differ in one bit
arange = torch.arange
torch.arange = lambda count: arange(count) ^ (arange(count) >> 1)

# %% claim: `sinusoids` gives the numbers that we worked out by hand.
# null: a base of 1,000
sines = sinusoids
sinusoids = lambda length, d_model: sines(length, 3 * d_model // 2)[:, :d_model]

# null: random rows
sinusoids = lambda length, d_model: (
    by_hand if d_model == 4 else torch.randn(length, d_model) / 2**0.5
)

# null: the idiom with another base
log = math.log
math.log = lambda base: log(base / 10)

# %% claim: For 1,000 positions, bases of 200 and more are wrong by
# null: the base makes no difference
tried = dict.fromkeys(tried, tried[10_000])

# null: guessing the middle
tried = {base: (250.0, idle) for base, (_, idle) in tried.items()}

# %% claim: Without positions the two *Jane*s have the same output;
# null: with positions in both
apart[0], without = apart[1], with_positions

# null: positions make no difference
apart[1] = apart[0]

# %% claim: With positions added, each of the 119 other orders gives
# null: no positions
encode.forward = lambda x: x

# null: a learned table
encode.table = nn.Parameter(encode.table)

# %% claim: One word at a time with `start` gives what all at once
# null: `start` makes no difference
forward = PositionalEncoding.forward
PositionalEncoding.forward = lambda self, x, start=0: forward(self, x)

# null: a table as long as is asked
whole = PositionalEncoding
PositionalEncoding = lambda d_model, max_length: whole(d_model)

# %% claim: One rotation takes each of 800 positions to its target, for
# null: one matrix for every step
rotate = rotation
rotation = lambda k, d_model: rotate(1, d_model)

# null: a learned table
sinusoids = lambda length, d_model: torch.randn(length, d_model)

# %% claim: Near and far, the word before gets more than 0.99 of the
# null: no rotation: each word looks for itself
looks_back.query_proj.weight.data = 64 * torch.eye(64)

# null: even weights
near = far = nothing

# %% claim: The dot product of two positions depends on their distance
# null: a learned table
sinusoids = lambda length, d_model: torch.randn(length, d_model)

# null: one slow rate: no ripples
sinusoids = lambda length, d_model: (
    torch.stack(
        ((torch.arange(length) / 200).sin(), (torch.arange(length) / 200).cos()), 1
    )
    * 32**0.5
)

# %% claim: At 512 features the word is always found and the position
# null: chance
recovered = {d_model: [1 / 1000, 1 / 40] for d_model in recovered}

# null: the width makes no difference
recovered = dict.fromkeys(recovered, recovered[512])

# null: the word is read from the features in which positions are alike
read_all = read_back
read_back = lambda d_model, moving_only: read_all(8)

# %% claim: A matrix on the concatenation is the sum of two matrices.
# null: the halves exchanged
cat = torch.cat
torch.cat = lambda parts: cat(parts[::-1])

# %% claim: Multiplied by position 0, words that differ in every even
# null: multiplied by another position
sines = sinusoids
sinusoids = lambda length, d_model: sines(length + 1, d_model)[1:]

# %% claim: With the wrong exponent, the similarity at distance 5
# null: the right exponent in both
wrong_exponent = sinusoids
along = (sinusoids(300, 64) @ sinusoids(300, 64).T).diagonal(5) / 32

# null: the similarity does not vary
along = along.mean().expand(2)

# %% claim: In the other layout, a projection with reordered columns
# null: a projection that is the same in either layout
randn = torch.randn
torch.randn = lambda *shape: randn(shape[0], 1).expand(shape)

# %% claim: At positions 40 to 59 the learned table recalls less than a
# null: positions make no difference: as with none
runs = dict.fromkeys(runs, runs["none"])

# null: without positions it recalls less than with a learned table
runs["none"] = runs["none"] / 3

# null: none does it too
runs["none"] = runs["learned"]

# null: sines go on where they were not trained
runs["sines"] = runs["sines, trained anywhere"]

# null: training anywhere makes no difference
runs["learned, trained anywhere"] = runs["learned"]

# %% claim: Without positions more than four sentences in five are
# null: positions bring nothing
shares_of["no-positions"] = shares_of["whole"]

# null: without positions next to nothing is right
shares_of["no-positions"] = [0.1] * 3

# %% claim: From sines alone, the best matrix for one step is off by
# null: sines alone do as well
eight = None
both = sinusoids
sinusoids = lambda length, d_model: both(length, d_model)[:, 1::2].repeat(1, 2)
