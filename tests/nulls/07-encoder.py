# %% claim: After three modules *Jane* and *septembre* differ by less
# null: residuals: each module adds
alone = [sentence]
for attention in attentions:
    alone.append(alone[-1] + attention(alone[-1], alone[-1], alone[-1]).detach())

# null: the words are alike at the start
sentence = sentence.mean(dim=1, keepdim=True).expand_as(sentence)

# %% claim: The module's output is the one that we worked out by hand.
# null: no ReLU
FeedForward.forward = lambda self, x: self.contract(self.expand(x))

# null: other words enter
forward = FeedForward.forward
FeedForward.forward = lambda self, x: (
    forward(self, x) + x.mean(dim=1, keepdim=True) * (x.size(1) > 1)
)

# %% claim: Two convolutions of width 1 with a ReLU between them give
# null: no ReLU in the network
FeedForward.forward = lambda self, x: self.contract(self.expand(x))

# null: each place also reads its neighbour
linear_of = FeedForward.forward
FeedForward.forward = lambda self, x: linear_of(self, x + x.roll(1, dims=1))

# %% claim: By hand and by PyTorch the normalised vector is the same.
# null: the variance over d - 1
normed = (x - x.mean()) / torch.sqrt(x.var() + 1e-5)

# null: no mean taken off
normed = x / torch.sqrt((x**2).mean() + 1e-5)

# %% claim: Layer norm gives the same whatever the other sentence is;
# null: batch norm in both
shift["layer norm"] = shift["batch norm"]

# null: layer norm in both
shift["batch norm"] = shift["layer norm"]

# %% claim: The sublayer gets x itself in post-norm and the normalised
# null: post-norm in both
residual_of = Residual
Residual = lambda d_model, norm_first=False: residual_of(d_model)

# null: no addition
Residual.forward = lambda self, x, sublayer: self.norm(sublayer(x))

# %% claim: Only with the additions can the position be read better
# null: additions make no difference
for table in (gradient, position, differences):
    table["Xavier", "as in the paper"] = table["Xavier", "norms only"]
    table["Xavier", "additions only"] = table["Xavier", "neither"]

# null: norms make no difference
for table in (gradient, position, differences):
    table["Xavier", "as in the paper"] = table["Xavier", "additions only"]

# null: no gradient reaches the queries
of_queries = dict.fromkeys(of_queries, 0.0)

# null: the position is guessed
position = dict.fromkeys(position, 1 / 16)

# %% claim: From PyTorch's weights, too, only the additions keep the
# null: additions make no difference
for table in (gradient, position, differences):
    for kind, other in (
        ("as in the paper", "norms only"),
        ("additions only", "neither"),
    ):
        table["PyTorch's default", kind] = table["PyTorch's default", other]

# null: the initial weights make no difference
for kind in kinds:
    gradient["PyTorch's default", kind] = gradient["Xavier", kind]

# null: the queries have gradient without additions, too
of_queries["PyTorch's default", "norms only"] = of_queries[
    "PyTorch's default", "as in the paper"
]

# null: the position is guessed
position = dict.fromkeys(position, 1 / 16)

# %% claim: Without the additions the stack gets fewer than 20% of the
# null: additions make no difference
repaired["PyTorch's default", "as in the paper"] = repaired[
    "PyTorch's default", "norms only"
]

# null: the size of the weights makes no difference
repaired["Xavier ÷ √3", "as in the paper"] = repaired["Xavier", "as in the paper"]

# null: no network needs them
repaired["PyTorch's default", "norms only"] = repaired[
    "PyTorch's default", "as in the paper"
]

# %% claim: At a rate of 0.015, post-norm learns only with warm-up.
# null: warm-up makes no difference
right["post-norm, warm-up"] = right["post-norm"]

# null: the order of the norm makes no difference
right["pre-norm"] = right["post-norm"]

# null: entries grow in both
size["post-norm, warm-up"] = size["pre-norm, warm-up"]

# %% claim: At equal size and in 300 steps, two layers get more than
# null: the number of layers makes no difference
hops["one layer"] = hops["two layers"]

# null: the second attention makes no difference
hops["two, one attends"] = hops["two layers"]

# null: neither learns
hops["two layers"] = hops["one layer"]

# null: more steps bring nothing
patient = hops["one layer"][0]

# null: one layer of half the size
weight["one layer"] //= 2

# %% claim: Six layers hold six times as many parameters as one.
# null: one layer, used six times
encoder.layers = nn.ModuleList([encoder.layers[0]] * 6)

# %% claim: Left on after training, dropout makes more mistakes.
# null: what is kept is not doubled
nn.functional.dropout = lambda x, *options: x * (torch.rand_like(x) < 0.5)

# null: x is dropped too
forward = Residual.forward
Residual.forward = lambda self, x, sublayer: forward(self, self.dropout(x), sublayer)

# null: dropout does no harm
score["train"] = score["eval"]

# %% claim: At a rate of 0.015, post-norm learns only with warm-up.
# null: post-norm's vectors vanish
size["post-norm, warm-up"] = [0.0] * 7

# %% claim: Replaced, the words become alike; added to, they stay
# null: nothing is added
ways = dict.fromkeys(ways, ways["replaced"])

# null: nothing is normalised
ways["normed"] = ways["added"]

# null: nothing is replaced
ways["replaced"] = ways["added"]

# %% claim: The unit responds more strongly to every form of *old* than
# null: another unit
units = units.roll(1, dims=1)

# null: the words are shuffled
tokens = tokens[1:] + tokens[:1]

# null: every unit responds to four words alone
of_word = torch.eye(len(kinds))[:, torch.arange(192) % len(kinds)]
