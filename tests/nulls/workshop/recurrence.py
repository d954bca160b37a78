# %% claim: The two formulas compute
# null: the LSTM's input gate left open
sigmoid, calls = torch.Tensor.sigmoid, []


def open_second(x):
    calls.append(x)
    return torch.ones_like(x) if len(calls) == 2 else sigmoid(x)


torch.Tensor.sigmoid = open_second

# null: the GRU's reset gate left open
sigmoid, calls = torch.Tensor.sigmoid, []


def open_fourth(x):
    calls.append(x)
    return torch.ones_like(x) if len(calls) == 4 else sigmoid(x)


torch.Tensor.sigmoid = open_fourth

# %% claim: All have one clause right
# null: attention makes no difference
chains_of = chains
chains = lambda kind, clauses: chains_of(
    kind.replace("with attention", "without"), clauses
)

# null: the longer training makes no difference
chains_of = chains
chains = lambda kind, clauses: chains_of(kind.removesuffix(", six times"), clauses)

# null: a network as wide as attention's
weights_of = {**weights_of, "without, wide": weights_of["with attention"]}

# %% claim: In chains of one clause
# null: an untrained translator
translator = train_translator(20, with_attention=True, seed=0, steps=0)

# null: each word aligned with itself, *in* too
translator = lambda french, english: (
    None,
    (french[:, None, :] == next_of(english)).double(),
)
next_of = lambda english: in_english[:, 1:, None]

# %% claim: A recurrent layer of PyTorch
# null: a fused LSTM, one node for all steps
fused = nn.LSTM(16, 16)
chain["LSTM"] = [
    longest_chain(fused(torch.randn(n, 16, requires_grad=True))[0]) for n in lengths
]

# null: attention's chain grows with the words
chain["attention"] = lengths

# %% claim: At 256 words attention takes
# null: all as fast as attention
clock = dict.fromkeys(clock, clock["attention"])

# null: attention's time per word does not grow
clock["attention"] = {**clock["attention"], 1024: clock["attention"][256]}

# null: the LSTM is run step by step
clock["LSTM"] = clock["GRU"]

# %% claim: At 32 words the gradient
# null: gates are enough: the open gate for all
reach = {**reach, "LSTM": draws(open_gate, 32)[:, None].expand(-1, len(distances))}

# null: a small W does it alone
parts["RNN: small W alone"] = parts["RNN: both"]

# null: an orthogonal U does it alone
parts["RNN: orthogonal U alone"] = parts["RNN: both"]

# null: the forget bias makes no difference
sweep = dict.fromkeys(sweep, sweep[1])

# %% claim: One letter, in all three runs
# null: all guess
far_runs = torch.full_like(far_runs, 1 / LETTERS)

# null: all learn every distance
far_runs = torch.ones_like(far_runs)

# null: what the gradient reaches is learned
far_runs = far_runs.clone()
kinds_in_order = list(networks)
far_runs[:, kinds_in_order.index("RNN, orthogonal")] = 1.0

# %% claim: Any of sixteen letters
# null: all guess
last_runs = {
    kind: torch.full_like(runs, 1 / LETTERS) for kind, runs in last_runs.items()
}

# null: the open gate helps
last_runs["LSTM, open gate"] = last_runs["LSTM"] + 0.1

# null: convolutions name half of them
last_runs["convolutions"] = (last_runs["attention"] + last_runs["convolutions"]) / 2

# %% claim: Twenty steps back
# null: all guess
live = {kind: {"right": [1 / LETTERS]} for kind in live}

# null: the gate makes no difference
live["LSTM"] = live["LSTM, open gate"]

# %% claim: At a quarter of the rate
# null: the rate makes no difference
by_rate = {(kind, rate): by_rate[kind, 0.004] for kind, rate in by_rate}

# null: the smallest rate serves all
by_rate = dict.fromkeys(by_rate, by_rate["RNN, orthogonal", 0.001])

# %% claim: Any of sixteen letters
# null: a GRU is as good as an LSTM
last_runs["GRU"] = last_runs["LSTM"]

# %% claim: In chains of one clause
# null: *in* looks at *en*
weights = weights.clone()
weights[0, english.index("in"), french.index("en")] = 0.5

# null: *and* looks elsewhere
weights = weights.roll(1, -1)
