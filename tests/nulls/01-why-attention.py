# %% claim: Each later word, a zero
# null: a state that keeps what it has
states = [states[0]] * 5

# %% claim: Each later word, a zero
# null: u = 1 in place of 0.5
state, states = 0.0, []
for x in is_jane:
    state = math.tanh(x + 1.0 * state)
    states.append(state)

# %% claim: In the stored runs, every run
# null: attention makes no difference
chains_of = whole_chains
whole_chains = lambda kind, clauses: chains_of(
    "without" if kind == "with attention" else kind, clauses
)

# %% claim: In the stored runs, every run
# null: six times the training makes no difference
chains_of = whole_chains
whole_chains = lambda kind, clauses: chains_of(
    kind.removesuffix(", six times"), clauses
)

# %% claim: Attention gets the same from *Jane*
# null: scores that fade with distance
roll = torch.Tensor.roll
torch.Tensor.roll = lambda x, place: roll(x, place) * (1 + place) / 5

# %% claim: Attention gets the same from *Jane*
# null: a recurrent network that keeps what it has
math.tanh = lambda x: min(1.0, 2 * x)

# %% claim: At *Jane* = 1, no $u$
# null: a state that keeps what it has
torch.tanh = lambda x: x

# %% claim: At *Jane* = 1, no $u$
# null: no score for *Jane*
math.exp = lambda x: 1.0

# %% claim: For 40 states and 40 memory
# null: one sum for each pair
torch.tanh = lambda sums: sums.sum(dim=-1)

# %% claim: In each of 100 draws
# null: no attention: each word alone
self_attention = lambda x: x

# %% claim: In each of 100 draws
# null: all weight on the first word
self_attention = lambda x: x[:1].expand_as(x)

# %% claim: In each of 100 draws
# null: the recurrent network's states see all words
stack = torch.stack
torch.stack = lambda rows: stack(rows) + stack(rows).mean(dim=0)

# %% claim: The multiplications of the matrices
# null: the maps are not counted
F.linear = lambda x, weight, bias: x
nn.Linear.forward = lambda self, x: x

# %% claim: The multiplications of the matrices
# null: attention to neighbours only


def self_attention(x):
    near = torch.ones(len(x), len(x)).tril(1).triu(-1).bool()
    scores = (x @ x.T).masked_fill(~near, -math.inf)
    return scores.softmax(dim=-1) @ x


# %% claim: Shuffled words get the same
# null: positions are added
without_positions = self_attention
self_attention = lambda x: without_positions(x + torch.arange(len(x))[:, None])

# %% claim: Shuffled words get the same
# null: the recurrent network in attention's place
self_attention = recurrent_states

# %% claim: Shuffled words get the same
# null: attention in the recurrent network's place
recurrent_states = self_attention

# %% claim: Shuffled words get the same
# null: a constant: all words get the same vector
attended = self_attention
self_attention = lambda x: attended(x).mean(dim=0).expand_as(x)
