# %% claim: The three products give exactly the queries, keys and
# null: the matrices of queries and keys exchanged
W_Q, W_K = W_K, W_Q

# null: the values are the words themselves
W_V = torch.eye(4)[:, :2]

# %% claim: All weights are positive and every row sums to one.
# null: the softmax over columns
weights = scaled.softmax(dim=0)

# null: even weights
weights = torch.full((3, 3), 1 / 3)

# %% claim: Plain Python, one number at a time, gives the same output.
# null: no scale
output = scores.softmax(dim=-1) @ V

# null: even weights
output = V.mean(dim=0).expand(3, -1)

# %% claim: Each output is the mean of the three values, weighted
# null: mixed by other weights
output = weights.roll(1, 1) @ V

# null: scores that are weights already
scores = weights

# %% claim: A number added to a whole row of scores changes no weight.
# null: shares without the exponential
softmax = torch.Tensor.softmax
torch.Tensor.softmax = lambda x, dim: x / x.sum(dim=dim, keepdim=True)

# null: each weight by itself
torch.Tensor.softmax = lambda x, dim: x.sigmoid()
weights = scaled.sigmoid()

# %% claim: Keys and values shuffled together change no output.
# null: positions are added to the keys
in_order = attend
attend = lambda query, key, value, scale: in_order(
    query, key + torch.arange(3.0)[:, None], value, scale
)

# null: even weights: the keys make no difference
attend = lambda query, key, value, scale: value.mean(dim=0).expand(len(query), -1)

# %% claim: The variance is $d_k$ without a scale and 1 with the square
# null: the variance does not depend on the width
variance = dict.fromkeys(variance, 1.0)

# null: divided by d_k in the root's place
variance = {(n, d): variance["full" if n == "root" else n, d] for n, d in variance}

# %% claim: Without the scale more than a fifth of the queries get
# null: the scale makes no difference to the weights
largest = {(name, d): largest["root", d] for name, d in largest}

# null: the weights have no scale in either
largest = {(name, d): largest["none", d] for name, d in largest}

# null: the scale makes no difference
measured = {(name, d): measured["root", d] for name, d in measured}

# null: no scale in either
measured = {(name, d): measured["none", d] for name, d in measured}

# null: the few have one key that wins
scores_, w_, g_ = measured["none", 1024]
measured["none", 1024] = scores_, w_, g_.flip(0)

# null: without the scale all gradients shrink
measured |= {
    key: (*m[:2], m[2] / 50) for key, m in measured.items() if key[0] == "none"
}

# null: the unscaled median is the shorter one from the start
middle |= {("none", d): middle["root", d] / 2 for d in widths[1:6]}

# %% claim: Without the scale none of ten learning rates reaches a
# null: the scale makes no difference
found["no scale, squared error"] = found["÷ √d_k, squared error"]

# null: the loss makes no difference
found["no scale, −log w"] = found["no scale, squared error"]

# null: short queries make no difference
found["no scale, short queries"] = found["no scale, squared error"]

# %% claim: With scores divided by $d_k$, the weight reached falls
# null: d_k does as well
at_ten["full"] = at_ten["root"]

# null: √d_k does as badly
at_ten["root"] = at_ten["full"]

# null: the larger rate makes no difference
thirtyfold = at_ten["full"]

# %% claim: Scores 2 and 1 are sharpened, 0.2 and 0.1 flattened.
# null: shares of the scores
torch.Tensor.softmax = lambda x, dim: x / x.sum(dim=dim, keepdim=True)

# null: the number of keys makes no difference
among_four = at_width(64, 8, queries=256, keys=4)
at_width = lambda *args, **kwargs: among_four

# %% claim: Unscaled, the weight of *Let's* on itself is 0.9999994.
# null: over √64 in both
plain, slope = over_root, slope_64

# null: the scale makes no difference
slope_64 = slope

# %% claim: Masked before the softmax, another hidden key changes
# null: nothing is masked before it
torch.Tensor.masked_fill = lambda scores, mask, fill: scores

# null: masked after it, and shared out anew
torch.Tensor.softmax = lambda x, dim, softmax=torch.Tensor.softmax: F.normalize(
    softmax(x, dim) * visible, p=1, dim=-1
)

# %% claim: Filled with the lowest number, then zero, the empty row and
# null: no zeros afterwards
ways["lowest, then 0"] = ways["lowest"]

# null: -inf does no harm
ways["-inf"] = ways["lowest, then 0"]

# null: the lowest number is enough
ways["lowest"] = ways["lowest, then 0"]

# %% claim: The function gives the numbers worked out by hand.
# null: no scale
scaled_dot_product_attention = lambda query, key, value: attend(query, key, value, 1)

# null: a mask of floats is taken for one of booleans
weights_of = attention_weights
attention_weights = lambda query, key, mask: weights_of(query, key, mask.bool())
scaled_dot_product_attention = lambda query, key, value: attend(
    query, key, value, math.sqrt(2)
)

# %% claim: Ours and PyTorch's agree on outputs and gradients, with
# null: no scale
with_all = scaled_dot_product_attention
scaled_dot_product_attention = lambda query, key, value, mask: with_all(
    2 * query, key, value, mask
)

# null: no mask
with_all = scaled_dot_product_attention
scaled_dot_product_attention = lambda query, key, value, mask: with_all(
    query, key, value
)

# null: an empty row is even
with_all = scaled_dot_product_attention


def scaled_dot_product_attention(query, key, value, mask):
    if mask is None:
        return with_all(query, key, value)
    return with_all(query, key, value, mask | ~mask.any(dim=-1, keepdim=True))


# %% claim: With a query so long that one weight is 1, query and keys
# null: even weights
attend = lambda query, key, value, scale: (query @ key.T * 0).softmax(-1) @ value


# null: the values are cut off as well
def attend(query, key, value, scale):
    return (query @ key.T / scale).softmax(-1) @ value.detach() + 0 * value.sum()


# %% claim: Without the division each of three stored runs gets 2 to 10
# null: the division changes nothing
exact["no-root"] = exact["whole"]

# null: without it nothing is learned
exact["no-root"] = [0.0, 0.0, 0.0]
