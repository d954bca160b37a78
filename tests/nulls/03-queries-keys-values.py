# %% claim: As the temperature falls, the result approaches the best
# null: the temperature makes no difference
lookup = soft_lookup
soft_lookup = lambda query, keys, values, temperature: lookup(query, keys, values)

# null: shares of the raw scores


def soft_lookup(query, keys, values, temperature):
    weights = F.normalize((keys @ query) ** (1 / temperature), p=1, dim=0)
    return weights, torch.tensordot(weights, values, dims=1)


# %% claim: A small change of the query leaves the best match and moves
# null: the best match alone
soft_lookup = lambda query, keys, values: (None, values[(keys @ query).argmax()])

# null: another query
count_words = count
count = lambda text: 1000 * count_words(text)

# %% claim: The repeated word wins by dot product and loses by cosine.
# null: cosines for both
dots = cosines

# null: dot products for both
cosines = dots

# %% claim: A query times c gives the weights of temperature 1/c.
# null: cosines: a query's length makes no difference


def soft_lookup(query, keys, values, temperature=1.0):
    cosines = F.cosine_similarity(keys, query, dim=1)
    return (cosines / temperature).softmax(dim=0), None


# null: dot products are held to the bound
F.cosine_similarity = lambda keys, query, dim: keys @ query

# %% claim: The query of the third word depends on the third word alone.
# null: the words are averaged before
jacobian = torch.autograd.functional.jacobian
torch.autograd.functional.jacobian = lambda function, x: jacobian(
    lambda words: function(words + words.mean(dim=0)), x
)

# null: each word is scored with itself alone
jacobian = torch.autograd.functional.jacobian
torch.autograd.functional.jacobian = lambda function, x: jacobian(
    lambda words: function(torch.where(torch.eye(5).bool()[2, :, None], words, 0.0)), x
)

# %% claim: The largest weight of *l'Afrique* is on *visite*.
# null: even weights
w3 = torch.full((5,), 1 / 5)

# null: all of the weight on *visite*
A3 = V[1]

# null: attention is blind to the scores
W_K = torch.zeros_like(W_K)

# %% claim: One word in two sentences gets two vectors.
# null: no attention: each word alone
attend_to_others = attend
attend = lambda x, q, k, v: (attend_to_others(x, q, k, v)[0], x @ v)

# null: keys that tell the two verbs apart
W_K = W_K.clone()
W_K[4, 1] = 1.0

# %% claim: Loop and matrix product give the same weights and outputs.
# null: the weights' rows for their columns
attend_by_rows = attend


def attend(x, q, k, v):
    weights = ((x @ q) @ (x @ k).T).softmax(dim=0)
    return weights, weights @ (x @ v)


# null: the values are the words themselves, doubled
attend_with_values = attend
attend = lambda x, q, k, v: attend_with_values(x, q, k, 2 * v)

# %% claim: *It* attends most to *pizza* and *oven*, and to both alike.
# null: even weights
with_itself = torch.full_like(with_itself, 1 / len(pizza))

# null: a pronoun looks for its own kind
asks = 3 * torch.eye(7)
scores = (P @ asks) @ P.T
with_itself = scores.softmax(dim=-1)

# %% claim: Without itself, attention alone turns *pizza* towards
# null: nothing is left out
without = with_itself

# null: it never attends to itself
with_itself = without

# %% claim: Ten times the values give ten times the outputs at equal
# null: values of one length
attend_with_lengths = attend


def attend(x, q, k, v):
    weights, _ = attend_with_lengths(x, q, k, v)
    return weights, weights @ F.normalize(x @ v, dim=-1)


# null: *aime* has the value of *visite*
sentences["aime"] = sentences["visite"]

# %% claim: With all three matrices trained, more than 99% of the
# null: no training
results["QKV"] = start

# null: W^V alone is enough
results["V"] = results["QKV"]

# null: W^Q and W^K alone are enough
results["QK"] = results["QKV"]

# null: the weights stay where they were
mean_after = mean_before

# null: right without a weight on *en*
mean_after = torch.eye(5)[[4, 0, 1]]

# %% claim: From zeros, the gradients of $W^Q$ and $W^K$ are exactly
# null: from small numbers
torch.zeros_like = lambda matrix: torch.full_like(matrix, 0.01)

# null: nothing has a gradient
output_loss = lambda ids, matrices: 0 * sum(matrix.sum() for matrix in matrices)

# %% claim: With one matrix for both, a score is the same in both
# null: one matrix for both from the start
K = Q
