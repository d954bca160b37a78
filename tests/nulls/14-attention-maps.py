# %% claim: The plain hook and
# null: the maps of a batch in another order
maps_of = attention_maps
attention_maps = lambda model, source, decoder_input: maps_of(
    model, source.flip(0), decoder_input.flip(0)
)

# null: looking changes the output
maps_of = attention_maps


def attention_maps(model, source, decoder_input):
    found = maps_of(model, source, decoder_input)
    projection = model.encoder.layers[0].self_attention.output_proj
    projection.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0,))
    return found


# %% claim: From the place and the verb
# null: even weights
words_in = journeys.source != PAD_ID
even = (words_in / words_in.sum(dim=1, keepdim=True))[:, None, None, None]
even = even.expand(-1, 2, 4, words_in.size(1), -1)
for query, key in trip_scores:
    trip_scores[query, key] = question_scores(even, words_in, at[query], at[key])

# null: a random word in place of the owner
lengths = (owned.source != PAD_ID).sum(dim=1)
draws = torch.rand(len(lengths), generator=torch.Generator().manual_seed(0))
someone = (draws * lengths).long()
whose = question_scores(recorded.encoder, real, owned_at["whose"], someone)

# %% claim: Without the owner heads the model
# null: three other heads
cases["no owners"] = control[0]

# null: a coin
cases["no owners"] = {
    **cases["no owners"],
    **{"p(his)": 0.5, "p(her)": 0.5, "says his": 0.5, "says her": 0.5},
    **{"his right": 0.5, "her right": 0.5},
}

# null: controls that hold an owner head each
control = [his_or_her_without(model, owned, *owner_heads[:2], head) for head in spare]

# %% claim: In all four, the best score
# null: owner heads not switched off
runs = {
    name: {**run, "without_owner_heads": {"says his": 0.5, "says her": 0.5}}
    for name, run in runs.items()
}

# null: one model four times
runs = dict.fromkeys(runs, runs["shipped"])

# null: the owner scores as the roles of a trip do
runs = {n: {**run, "whose": [[max(run["note"].values())]]} for n, run in runs.items()}

# %% claim: Exchanging *sa*'s vector
# null: nothing is exchanged
trials = dict.fromkeys(trials, trials["nothing"])

# null: the vector of the next word in its place
trials["sa's vector alone"] = exchanged(model, owned, sa.roll(-1, 1))

# null: a model that always predicts his
trials = {
    name: {**found, "his right": 1.0, "her right": 0.0, "says his": 1.0}
    for name, found in trials.items()
}

# %% claim: For content words attention
# null: a random word named, in random order
table = dict.fromkeys(table, (chance, 0.0))

# null: attention in deletion's order
table = dict.fromkeys(table, (1.0, 1.0))

# %% claim: Before the encoder the probe
# null: the heads stay on
without_heads = known

# null: the word's own embedding alone
known = {role: [shares[0]] * 3 for role, shares in known.items()}

# %% claim: For content words attention
# null: it orders the rest as deletion does
by_attention = by_deletion

# %% claim: With *Afrique*'s vector
# null: another word's vector stands there
memory = memory.roll(1, 1)

# null: nothing is exchanged
largest = 0.0

# null: the vector of the same country from another sentence
flip = torch.Tensor.flip
torch.Tensor.flip = lambda x, *dims: x.roll(1, 0) if x.dim() == 3 else flip(x, *dims)

# %% claim: The four words with the most weight
# null: even weights
weight = torch.full_like(weight, 0.2)

# null: weights that follow how often a word stands beside *sa*
weight = ratio / ratio.max()

# %% claim: In the second layer *sa*
# null: even weights over the six words
torn = {**torn, "to her": 1 / 6, "to him": 1 / 6}

# null: one sentence in ten translated
one = {**runs["1"], "two_owners": {**runs["1"]["two_owners"], "all right": 0.1}}
runs = {**runs, "1": one}

# %% claim: Of the three owner heads
# null: heads that stay on
from contextlib import nullcontext

ablate_heads = lambda model, *heads: nullcontext()

# null: all three off
switch_off = ablate_heads
ablate_heads = lambda model, *heads: switch_off(model, *owner_heads)

# null: the head that matters has the highest score
whose = whose.roll(1, 1)

# %% claim: With the mean over all words
# null: the heads' own outputs
owner_heads = []

# null: another head
owner_heads = [Head("encoder", 1, 3)]

# null: the mean over the owners, not over *sa*
owned_at = {**owned_at, "whose": owned_at["who"]}

# %% claim: The four words with the most weight
# null: commoner words get more weight, before *sa* too
among_ahead = by_count

# %% claim: For content words attention
# null: the place alone does as well as attention
placed = compared(model, sample)["attention"][0][kind_of == 2]

# null: the place says nothing
placed = torch.rand(len(placed)) < chance

# %% claim: In the second layer *sa*
# null: head 2.2 looks at both
her = him = (her + him) / 2

# %% claim: Without the owner heads the model
# null: another head alone costs some, too
lost[1][0, 0] = 5
