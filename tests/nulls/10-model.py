# %% claim: With the same weights the package's model gives the same
# null: the plain model keeps weights of its own
plain.load_state_dict = lambda state: None

# null: the plain model without positions
plain.position.forward = lambda x: x

# %% claim: In each of the three cases the mean lies within twice the
# null: log V alone
cases = {name: (case, 0.0) for name, (case, _) in cases.items()}

# null: large logits cost nothing
above["own table, twice as large"] = above["own table"]

# null: a shared table starts as one of its own does
above["shared table"] = above["own table"]

# null: the leak shows, as with a shared table
start_of = start
start = lambda **how: start_of(**{"tie": "shift" in how, **how})


# %% claim: The gradient of a tied table is the sum of the gradients of
# null: one use of the table alone has a gradient
def sum(gradients):
    return gradients[0]


# null: the tables are not tied
Transformer.tie_weights = lambda _: None

# %% claim: Only Xavier's weights and PyTorch's default end below a
# null: every start learns as Xavier's does
memorised = dict.fromkeys(memorised, memorised["Xavier"])

# null: no start learns
memorised = {
    n: [(a, a, model) for a, _, model in runs] for n, runs in memorised.items()
}

# null: zeros are left as tiny weights are
memorised["zero"] = memorised["normal, std 0.001"]

# %% claim: The model keeps all four; each faulty model breaks the one
# null: the model forgets its causal mask
Transformer = SeesTheFuture

# null: the faulty model has its causal mask after all
SeesTheFuture = Transformer

# null: the memory keeps its mean
SeesTheBatch = Transformer

# null: the source is read after all
IgnoresTheSource = Transformer

# null: the model ignores its source
Transformer = IgnoresTheSource

# null: padding is known by the batch's own id
properties_config = lambda norm_first=False, **special: TransformerConfig.tiny(
    11, 11, dropout=0.0, tie_embeddings=True, norm_first=norm_first
)

# %% claim: Models built with the sizes of base and big have these
# null: attention without biases
without = 4 * 512
base["one encoder layer"] -= without
base["one decoder layer"] -= 2 * without
base["total"] -= 18 * without

# null: attention and feed-forward hold the same
base["one feed-forward"] = base["one attention"] * 3 // 2

# null: tables not tied
Transformer.tie_weights = lambda _: None

# %% claim: Ten rows agree on a table of about 41,000 words.
# null: the paper's text: 37,000 rows
agree = (36_900.0, 37_100.0)

# %% claim: Outputs and the gradients of every weight equal those of
# null: each keeps its own random weights
copied = from_torch
from_torch = lambda theirs: copied(torch_model(norm_first, dtype))

# null: ours without the causal mask
run_ours = lambda ours, x, y: ours.decoder(
    y, ours.encoder(x, source_mask), source_mask, words
)

# %% claim: Without PyTorch's last norm next to nothing changes while
# null: the last norm's weights never move
shaken = torch_model
torch_model = lambda norm_first, keep_last_norm, std: shaken(
    norm_first, keep_last_norm=keep_last_norm, std=0
)

# null: no last norm in either
torch_with_norm = torch_model
torch_model = lambda norm_first, keep_last_norm, std: torch_with_norm(
    norm_first, keep_last_norm=False, std=std
)

# %% claim: The loaded model gives the same logits to the last bit.
# null: a fresh model of the same config
loaded = Transformer(model.config).eval()

# null: equal tables, not tied
loaded.output.weight = nn.Parameter(loaded.output.weight.clone())

# %% claim: With probabilities in place of logits, the least loss over
# null: logits that may be as large as they like
F.one_hot = lambda ids, size: 100 * torch.eye(size)[ids]
