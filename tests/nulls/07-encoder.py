# %% claim: After three modules *Jane*
# null: residuals: each module adds
alone = [sentence]
for attention in attentions:
    alone.append(alone[-1] + attention(alone[-1], alone[-1], alone[-1]).detach())

# %% claim: After three modules *Jane*
# null: the words are alike at the start
sentence = sentence.mean(dim=1, keepdim=True).expand_as(sentence)

# %% claim: With query matrices a hundred
# null: sharpness makes no difference
longer[100] = longer[100][0], longer[1][1], longer[1][2]

# %% claim: With query matrices a hundred
# null: sharp weights prevent it, not only delay it
longer[100] = longer[100][0], longer[100][1], longer[100][1]

# %% claim: With query matrices a hundred
# null: in no draw is anything left after four modules
sharp_draws[:, 0] = 0

# %% claim: With query matrices a hundred
# null: after twenty-four modules as much is left as after four
sharp_draws[:, 1] = sharp_draws[:, 0]

# %% claim: With query matrices a hundred
# null: longer queries do not sharpen
longer[100] = longer[1]

# %% claim: The module's output is the one
# null: no ReLU
FeedForward.forward = lambda self, x: self.contract(self.expand(x))

# %% claim: The module's output is the one
# null: other words enter
forward = FeedForward.forward
FeedForward.forward = lambda self, x: (
    forward(self, x) + x.mean(dim=1, keepdim=True) * (x.size(1) > 1)
)

# %% claim: Two convolutions of width 1
# null: no ReLU in the network
FeedForward.forward = lambda self, x: self.contract(self.expand(x))

# %% claim: Two convolutions of width 1
# null: each place also reads its neighbour
linear_of = FeedForward.forward
FeedForward.forward = lambda self, x: linear_of(self, x + x.roll(1, dims=1))

# %% claim: By hand and by torch
# null: the variance over d - 1
normed = (x - x.mean()) / torch.sqrt(x.var() + 1e-5)

# %% claim: By hand and by torch
# null: no mean taken off
normed = x / torch.sqrt((x**2).mean() + 1e-5)

# %% claim: Layer norm gives the same
# null: batch norm in both
shift["layer norm"] = shift["batch norm"]

# %% claim: Layer norm gives the same
# null: layer norm in both
shift["batch norm"] = shift["layer norm"]

# %% claim: The input of the sublayer is x
# null: post-norm in both
residual_of = Residual
Residual = lambda d_model, norm_first=False: residual_of(d_model)

# %% claim: The input of the sublayer is x
# null: no addition
Residual.forward = lambda self, x, sublayer: self.norm(sublayer(x))

# %% claim: Ours and PyTorch's layer
# null: post-norm in both
layer_of = EncoderLayer
EncoderLayer = lambda *sizes, norm_first: layer_of(*sizes)

# %% claim: Ours and PyTorch's layer
# null: no mask
forward = EncoderLayer.forward
EncoderLayer.forward = lambda self, x, mask: forward(self, x)

# %% claim: With this book's initial weights
# null: additions make no difference
for table in (gradient, position, differences):
    table["Xavier", "as in the paper"] = table["Xavier", "norms only"]
    table["Xavier", "additions only"] = table["Xavier", "neither"]

# %% claim: With this book's initial weights
# null: norms make no difference
for table in (gradient, position, differences):
    table["Xavier", "as in the paper"] = table["Xavier", "additions only"]

# %% claim: With this book's initial weights
# null: no gradient reaches the queries
of_queries = dict.fromkeys(of_queries, 0.0)

# %% claim: With this book's initial weights
# null: the position is guessed
position = dict.fromkeys(position, 1 / 16)

# %% claim: From PyTorch's initial weights, the gradient falls
# null: additions make no difference
for table in (gradient, position, differences):
    for kind, other in (
        ("as in the paper", "norms only"),
        ("additions only", "neither"),
    ):
        table["PyTorch's default", kind] = table["PyTorch's default", other]

# %% claim: From PyTorch's initial weights, the gradient falls
# null: the initial weights make no difference
for kind in kinds:
    gradient["PyTorch's default", kind] = gradient["Xavier", kind]

# %% claim: From PyTorch's initial weights, the gradient falls
# null: the queries have gradient without additions, too
of_queries["PyTorch's default", "norms only"] = of_queries[
    "PyTorch's default", "as in the paper"
]

# %% claim: From PyTorch's initial weights, the gradient falls
# null: the position is guessed
position = dict.fromkeys(position, 1 / 16)

# %% claim: From PyTorch's default weights
# null: additions make no difference
repaired["PyTorch's default", "as in the paper"] = repaired[
    "PyTorch's default", "norms only"
]

# %% claim: From PyTorch's default weights
# null: the size of the weights makes no difference
repaired["Xavier ÷ √3", "as in the paper"] = repaired["Xavier", "as in the paper"]

# %% claim: From PyTorch's default weights
# null: no network needs them
repaired["PyTorch's default", "norms only"] = repaired[
    "PyTorch's default", "as in the paper"
]

# %% claim: From PyTorch's weights, at a rate
# null: warm-up makes no difference
right["post-norm, warm-up"] = right["post-norm"]

# %% claim: From PyTorch's weights, at a rate
# null: the order of the norm makes no difference
right["pre-norm"] = right["post-norm"]

# %% claim: From PyTorch's weights, at a rate
# null: entries grow in both
size["post-norm, warm-up"] = size["pre-norm, warm-up"]

# %% claim: At equal size and in 300 steps
# null: the number of layers makes no difference
hops["one layer"] = hops["two layers"]

# %% claim: At equal size and in 300 steps
# null: the second attention makes no difference
hops["two, one attends"] = hops["two layers"]

# %% claim: At equal size and in 300 steps
# null: neither learns
hops["two layers"] = hops["one layer"]

# %% claim: At equal size and in 300 steps
# null: more steps bring nothing
patient = hops["one layer"][0]

# %% claim: At equal size and in 300 steps
# null: one layer of half the size
weight["one layer"] //= 2

# %% claim: The parts follow their formulas
# null: no biases
parts["attention, 4 (d² + d)"] -= 4 * 512

# %% claim: The parts follow their formulas
# null: six layers share nothing
shared = own

# %% claim: In training each number
# null: what is kept is not doubled
nn.functional.dropout = lambda x, *options: x * (torch.rand_like(x) < 0.5)

# %% claim: In training each number
# null: x is dropped too
forward = Residual.forward
Residual.forward = lambda self, x, sublayer: forward(self, self.dropout(x), sublayer)

# %% claim: In training each number
# null: dropout does no harm
score["train"] = score["eval"]

# %% claim: From PyTorch's weights, at a rate
# null: post-norm's vectors vanish
size["post-norm, warm-up"] = [0.0] * 7

# %% claim: After six modules the difference is below
# null: nothing is added
ways = dict.fromkeys(ways, ways["replaced"])

# %% claim: After six modules the difference is below
# null: nothing is normalised
ways["normed"] = ways["added"]

# %% claim: After six modules the difference is below
# null: nothing is replaced
ways["replaced"] = ways["added"]

# %% claim: At every one of the four forms
# null: another unit
units = units.roll(1, dims=1)

# %% claim: At every one of the four forms
# null: the words are shuffled
tokens = tokens[1:] + tokens[:1]

# %% claim: At every one of the four forms
# null: every unit responds to four words alone
of_word = torch.eye(len(kinds))[:, torch.arange(192) % len(kinds)]
