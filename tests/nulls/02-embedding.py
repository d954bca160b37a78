# %% claim: One-hot vectors times the table and indexing the table give
# null: the rows in another order
one_hot = one_hot.roll(1, 0)

# %% claim: The gradient of a word that does not occur is exactly zero.
# null: every word occurs as often
grad_norm = torch.full_like(grad_norm, grad_norm[id_of["visite"]])

# null: a tied table, where every row has a gradient
grad_norm = grad_norm + 1e-3

# %% claim: After 200 steps not one bit of *Tombouctou*'s row has
# null: weight decay
trained = trained.clone()
trained[id_of["Tombouctou"]] *= 0.99

# null: no training
trained = start

# %% claim: With either optimiser *en* needs fewer than half of the
# null: Adam in both
runs["gradient descent"] = runs["Adam"]

# null: gradient descent in both
runs["Adam"] = runs["gradient descent"]

# null: frequent words learn no faster: their losses in another order
runs = {name: (moved, losses.flip(1)) for name, (moved, losses) in runs.items()}

# null: with Adam *visite* is as slow as *Zoé*
moved, losses = runs["Adam"]
runs["Adam"] = moved, losses[:, [0, 3, 2, 3]]

# %% claim: After 200 steps the loss is less than 0.05 above the least
# null: no training
table.weight.data.copy_(start)

# null: neighbours that the middle word determines
spread = lambda neighbour: 0.0

# %% claim: After training every pair within a kind is more similar
# null: no training
trained = start

# null: a start that knows the kinds
start = trained

# %% claim: The nearest words to *aime* are the three other verbs,
# null: no training
trained = start

# null: the two verbs share a sentence
corpus = [*corpus, ["Jane", "aime", "déteste"]]

# %% claim: *Florence* is less similar to people and places than they
# null: no training
trained = start

# null: Florence is one of the people
trained = trained.clone()
trained[id_of["Florence"]] = trained[id_of["Jane"]]

# %% claim: From 8 to 1,024 dimensions the ratio is √(d_model / 2)
# null: the ratio does not depend on the width
ratio = [ratio[2]] * len(ratio)

# null: √d_model, without the half
ratio = [each * 2**0.5 for each in ratio]

# %% claim: Without the factor the mean cosine is above 0.9 from 32
# null: the factor makes no difference
scaled = stored

# null: random directions
stored = torch.randn(len(sizes)) / 10

# %% claim: Rows of variance 1 start at more than five times the loss
# null: the variance makes no difference
first_loss = dict.fromkeys(first_loss, first_loss["1/d_model"])

# null: scores of zero
first_loss["1/d_model"] = uniform

# %% claim: In a tied table every row gets a gradient, even that of
# null: a table for each
F.cross_entropy = lambda scores, labels, loss=F.cross_entropy: loss(h @ start.T, labels)

# %% claim: The layer's output is one-hot vectors times the table,
# null: no factor
TokenEmbedding.forward = lambda self, ids: self.table(ids)

# null: rows of variance 1
TokenEmbedding.__init__ = lambda self, vocab_size, d_model: (
    nn.Module.__init__(self)
    or setattr(self, "table", nn.Embedding(vocab_size, d_model))
)

# %% claim: Of 5,000 random directions with 512 numbers, no two are
# null: rows that share a mean
shifted = torch.randn
torch.randn = lambda *size, **options: shifted(*size, **options) + 1

# %% claim: Turned by one rotation, all predictions and all cosines are
# null: a shear in place of a rotation
torch.linalg.qr = lambda matrix: type("QR", (), {"Q": torch.ones(8, 8).triu()})

# null: rows stretched, not turned
torch.linalg.qr = lambda matrix: type("QR", (), {"Q": 2 * torch.eye(8)})
