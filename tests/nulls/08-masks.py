# %% claim: The masked row equals the formula and gives the forbidden
# null: no mask
masked = free

# null: masked after the softmax
masked = free * allowed

# %% claim: With padding at the end, the rows of real words are the
# null: no padding: the causal mask alone
both = causal.expand_as(both)

# null: padding at the start
both = padding.flip(-1) & causal

# %% claim: With the mask, the batch changes an output by less than
# null: no mask in either
padding = None

# null: the mask in both
change = 0.0

# %% claim: Masked scores give the same row for any forbidden score.
# null: a number added to the forbidden score
before = lambda scores: (scores - 2 * (~allowed).float()).softmax(-1)

# null: zeroing afterwards loses nothing
after = before

# null: dividing by the rest is safe
after_renormalised = before

# %% claim: In four dtypes, our attention and the fused one give such a
# null: the lowest number: even weights
attention_weights = lambda query, key, mask: (
    (query @ key.mT / 2).masked_fill(~mask, torch.finfo(query.dtype).min).softmax(-1)
)

# null: minus infinity
attention_weights = lambda query, key, mask: (
    (query @ key.mT / 2).masked_fill(~mask, -torch.inf).softmax(-1)
)

# %% claim: With minus infinity, every number of the map's gradient is
# null: minus infinity does no harm
with_infinity = with_zeros

# null: minus infinity in both
with_zeros = with_infinity

# %% claim: Masking the queries as well changes no real word.
# null: masking queries is enough
outputs["queries"] = outputs["keys"]

# null: masking keys as well makes no difference to padding
outputs["keys and queries"] = outputs["keys"]

# null: no mask
with torch.no_grad():
    outputs["keys"] = encoder(position(embedding(ids)))[1]

# %% claim: A weight of zero on a NaN value gives NaN.
# null: the blind row is zero
with_infinity = with_zeros

# %% claim: In `nn.MultiheadAttention` True means *may not*.
# null: True means *may* there too
layer_of = layer
layer = lambda *vectors, **masks: layer_of(
    *vectors, **{name: ~mask for name, mask in masks.items()}
)

# null: no NaN in evaluation either
nn.TransformerEncoderLayer.eval = nn.TransformerEncoderLayer.train

# null: True means *may not* in the fused function
fused_of = F.scaled_dot_product_attention
F.scaled_dot_product_attention = lambda q, k, v, mask, *torchs: fused_of(
    q, k, v, mask if torchs else ~mask, *torchs
)

# %% claim: The right mask ends within 0.02 of the floor, the others
# null: the mask makes no difference
last["off by one"] = last["right mask"]

# null: the right mask leaks
last["right mask"] = last["off by one"]

# null: not shifted is as off by one
last["not shifted"] = last["off by one"]

# %% claim: In use, the mask that is off by one costs more than twice
# null: the leak goes on in use
in_use["off by one"] = last["off by one"]

# null: off by one costs nothing: the floor
in_use["off by one"] = in_use["right mask"]

# %% claim: Under the right mask no output moves with the future.
# null: the number of layers makes no difference
furthest = [min(steps, 1) for steps in furthest]

# null: nothing leaks
furthest = [0 for _ in furthest]

# null: no causal mask
influence_of = influence
influence = lambda model, mask: influence_of(model, None)

# null: the leak is not seen
influence_of = influence
influence = lambda model, mask: influence_of(model, right_mask)

# null: each output depends on its own token alone
influence_of = influence
influence = lambda model, mask: influence_of(model, torch.eye(LENGTH).bool())

# %% claim: Without the mask each model's loss is more than 0.1 above
# null: the mask makes no difference in use
without_mask = with_mask

# null: the mask is lost in both
with_mask = without_mask

# null: one layer in place of two
next_token = NextToken
NextToken = lambda num_layers: next_token(1)

# %% claim: No weight is left above the diagonal.
# null: no mask
weights = table.softmax(dim=-1)

# null: the diagonal is hidden, too
weights = table.masked_fill(~before_it.tril(-1), -torch.inf).softmax(dim=-1)

# null: masked after the softmax
weights = table.softmax(dim=-1) * before_it

# %% claim: An output moves with a token exactly where
# null: the number of layers makes no difference
count_moves = moves
moves = lambda mask, layers: count_moves(mask, 1)

# null: no residual connection: a word that may not see itself is lost
moves = lambda mask, layers: torch.matrix_power(mask.float(), layers) > 0

# null: rows and columns exchanged
count_moves = moves
moves = lambda mask, layers: count_moves(mask, layers).T
