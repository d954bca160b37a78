# %% claim: One head that matches both gives the two sentences the same
# null: the visitor matches better than the month
when = 0.5 * when

# null: even weights in every head
who = when = torch.zeros_like(who)

# %% claim: Side by side, the two heads name visitor and month in all
# null: one head for both
who = when = who + when

# null: even weights
who = when = torch.zeros_like(who)

# %% claim: At *l'Afrique* the heads return the codes of *Jane* and of
# null: the heads are exchanged
by_hand.query_proj.weight.data = by_hand.query_proj.weight.data.roll(4, 0)

# null: even weights
by_hand.query_proj.weight.data.zero_()

# %% claim: The layer and separate heads give the same outputs and the
# null: the separate heads without the mask
with_mask = scaled_dot_product_attention
scaled_dot_product_attention = lambda query, key, value, mask=None: with_mask(
    query, key, value
)

# null: one head
MultiHeadAttention = lambda d_model, num_heads, layer=MultiHeadAttention: layer(
    d_model, 1
)

# %% claim: What `weights` shows is what the layer's fused attention
# null: even weights
MultiHeadAttention.weights = lambda self, query, key, mask: (
    mask / mask.sum(dim=-1, keepdim=True)
).expand(len(query), 4, -1, -1)

# null: weights without the mask
weights_of = MultiHeadAttention.weights
MultiHeadAttention.weights = lambda self, query, key, mask: weights_of(self, query, key)

# %% claim: In the broken layer only the last two of eight words depend
# null: the split is right in both
viewed_attention = lambda layer, x: layer(x, x, x)

# null: the other word is the first
after = before.clone()
after[:, 0] = torch.randn(32)

# %% claim: With other codes, head 1 of the split input does not change
# null: the projection is split in both
split_input = head_outputs

# null: the input is split in both
head_outputs = split_input

# %% claim: The layer's output is the sum of one term for each head.
# null: heads are exchanged
MultiHeadAttention.weights = (
    lambda self, query, key, weights=MultiHeadAttention.weights: weights(
        self, query, key
    ).flip(1)
)

# null: each head writes features of its own
start_layer = MultiHeadAttention.__init__


def with_blocks(self, d_model, num_heads):
    start_layer(self, d_model, num_heads)
    self.output_proj.weight.data *= torch.block_diag(*[torch.ones(8, 8)] * 4)


MultiHeadAttention.__init__ = with_blocks

# %% claim: With heads renumbered everywhere the output is the same.
# null: what is renumbered is no head: two heads of 16 features
layer.num_heads = 2
output = layer(vectors, vectors, vectors)
MultiHeadAttention = lambda d_model, num_heads, layer=MultiHeadAttention: layer(
    d_model, 2
)

# null: renumbered in the order they have
torch.tensor = lambda order, tensor=torch.tensor: tensor(sorted(order))

# %% claim: If words move along directions that head 1 does not
# null: moved along any 8 directions
import types

torch.linalg.svd = lambda reads: types.SimpleNamespace(
    Vh=torch.linalg.qr(torch.randn(32, 32)).Q
)

# null: all heads read the same
head_outputs_of = head_outputs
head_outputs = lambda layer, x: head_outputs_of(layer, x)[:, :1].expand(-1, 4, -1, -1)

# %% claim: The number of parameters is the same for 1, 2, 4 and 8
# null: no biases
MultiHeadAttention = lambda d_model, heads, layer=MultiHeadAttention: layer(
    d_model, heads, bias=False
)

# null: one table of weights for all heads
MultiHeadAttention.weights = (
    lambda self, query, key, weights=MultiHeadAttention.weights: weights(
        self, query, key
    )[:, :1]
)

# null: every head is as wide as the model
size_of = size
size = lambda layer: layer.num_heads * size_of(layer)

# %% claim: Every run of two, four or eight heads without the network
# null: one head does as well
trained["1 head"] = trained["2 heads"]

# null: a split input does as well
trained["2 heads, input split"] = trained["2 heads"]

# null: the output map makes no difference
trained["2 heads, no output_proj"] = trained["2 heads"]

# null: the feed-forward network fits no more
trained["1 head, feed-forward"] = trained["1 head"]

# null: one head fits the training pairs alone
trained["1 head"] = [(1.0, unseen) for _, unseen in trained["1 head"]]

# %% claim: With copied weights and the mask flipped, outputs and
# null: weights of their own
torch.Tensor.copy_ = lambda x, y: x

# null: the mask is not flipped
torch.Tensor.__invert__ = lambda mask: mask

# %% claim: With the mask as it is, the forbidden words get all of the
# null: True means that it may attend, as in our layer
theirs_as_it_is = theirs
theirs = lambda *vectors, attn_mask: theirs_as_it_is(*vectors, attn_mask=~attn_mask)

# %% claim: A large bias of the keys changes no weight.
# null: scores without a softmax
attention_weights = lambda query, key: query @ key.T

# null: even weights
attention_weights = lambda query, key: torch.full((8, 8), 1 / 8).double()
