# %% claim: Each later word leaves less than half of what was left of
# null: a state that keeps what it has
states = [states[0]] * 5

# null: u = 1 in place of 0.5
state, states = 0.0, []
for x in is_jane:
    state = math.tanh(x + 1.0 * state)
    states.append(state)

# %% claim: In the stored runs, every run with attention gets all
# null: attention makes no difference
chains_of = whole_chains
whole_chains = lambda kind, clauses: chains_of(
    "without" if kind == "with attention" else kind, clauses
)

# null: six times the training makes no difference
chains_of = whole_chains
whole_chains = lambda kind, clauses: chains_of(
    kind.removesuffix(", six times"), clauses
)

# %% claim: Attention gets the same from *Jane* in any of the five
# null: scores that fade with distance
roll = torch.Tensor.roll
torch.Tensor.roll = lambda x, place: roll(x, place) * (1 + place) / 5

# null: a recurrent network that keeps what it has
math.tanh = lambda x: min(1.0, 2 * x)

# %% claim: At *Jane* = 1, no $u$ on the slider keeps a twentieth of
# null: a state that keeps what it has
torch.tanh = lambda x: x

# null: no score for *Jane*
math.exp = lambda x: 1.0

# %% claim: For each pair, additive attention holds 512 numbers and a
# null: one sum for each pair
torch.tanh = lambda sums: sums.sum(dim=-1)

# %% claim: In each of 100 draws, the last word changes what
# null: no attention: each word alone
self_attention = lambda x: x

# null: all weight on the first word
self_attention = lambda x: x[:1].expand_as(x)

# null: the recurrent network's states see all words
stack = torch.stack
torch.stack = lambda rows: stack(rows) + stack(rows).mean(dim=0)

# %% claim: The multiplications are those that PyTorch counts.
# null: the maps are not counted
F.linear = lambda x, weight, bias: x
nn.Linear.forward = lambda self, x: x

# null: attention to neighbours only


def self_attention(x):
    near = torch.ones(len(x), len(x)).tril(1).triu(-1).bool()
    scores = (x @ x.T).masked_fill(~near, -math.inf)
    return scores.softmax(dim=-1) @ x


# %% claim: Shuffled words get the same vectors from self-attention,
# null: positions are added
without_positions = self_attention
self_attention = lambda x: without_positions(x + torch.arange(len(x))[:, None])

# null: the recurrent network in attention's place
self_attention = recurrent_states

# null: attention in the recurrent network's place
recurrent_states = self_attention

# null: a constant: all words get the same vector
attended = self_attention
self_attention = lambda x: attended(x).mean(dim=0).expand_as(x)
