# %% claim: The translation is right
# null: an untrained model
torch.manual_seed(0)
model = Transformer(model.config).eval()
translation = plain_greedy(model, source, max_length=32)

# null: the sentence stood in training
sampled = sample_pairs
sample_pairs = lambda count, seed: sampled(5 * count, seed, held_out=None)

# %% claim: In training the decoder runs
# null: greedy search needs no decoder
plain_greedy = lambda model, source, most: [1, 2, 3]

# null: a training step runs it twice
once = type(model).forward
type(model).forward = lambda self, *ids: (once(self, *ids), once(self, *ids))[0]

# %% claim: Appending *Africa* leaves
# null: no mask in either
masked = unmasked

# null: the mask in both
unmasked = masked

# %% claim: The cached steps give
# null: the cache without the padding mask of the sources
prefill = CachedDecoder.prefill


def without_mask(self, *arguments):
    state = prefill(self, *arguments)
    state.source_mask = torch.ones_like(state.source_mask)
    return state


CachedDecoder.prefill = without_mask

# null: positions make no difference
model.position.table.zero_()

# null: single precision
copy.deepcopy = lambda model: model
model.double = lambda: model

# %% claim: The formula holds exactly
# null: the source costs nothing
source = source[:, :0]

# null: without a cache a token costs what it costs with one
multiplied["without"] = multiplied["with"]

# %% claim: Sixty sentences get the same
# null: padding is attended to
prefill = CachedDecoder.prefill


def without_mask(self, *arguments):
    state = prefill(self, *arguments)
    state.source_mask = torch.ones_like(state.source_mask)
    return state


CachedDecoder.prefill = without_mask
together = greedy_search(model, sources, max_length=32)

# null: all rows stay to the last step
rows = [len(sources)] * len(rows)

# %% claim: For each of the 300 sentences
# null: every translation counts as exact
exact_matches = lambda model, examples: [True] * len(examples)

# null: the next sentence's count
counted = exact_matches
exact_matches = lambda model, examples: [
    counted(model, examples)[i - 1] for i in range(len(examples))
]

# %% claim: The package's `top_p_filter` gives
# null: no filter
top_p_filter = lambda probabilities, top_p: probabilities

# null: the most probable tokens are taken to stand first


def top_p_filter(probabilities, top_p):
    kept = probabilities * (probabilities.cumsum(-1) - probabilities < top_p)
    return kept / kept.sum(-1, keepdim=True)


# null: even draws within the nucleus
filtered = top_p_filter
top_p_filter = lambda probabilities, top_p: (
    filtered(probabilities, top_p)
    if len(probabilities) == 4
    else F.normalize((filtered(probabilities, top_p) > 0).float(), p=1, dim=-1)
)

# %% claim: At temperature 1 the share
# null: the share of greedy search at every setting
shares = {top_p: [sum(exact) / len(exact)] * 5 for top_p in shares}

# null: the nucleus makes no difference
shares[0.8] = shares[1.0]

# null: temperature 0.7, counted as 1
shares[1.0] = [shares[1.0][2]] * 5

# %% claim: The sentence with the cat
# null: the sentence that greedy search finds
cat = greedy

# %% claim: On its way the winner
# null: the tree of greedy search
branches, winner = tree(hard, beam_size=1)
view = BeamTree(branches, winner, title="")

# null: an easy sentence
branches, winner = tree(source[0].tolist(), beam_size=3)
view = BeamTree(branches, winner, title="")

# %% claim: For the hard sentence and 15
# null: a beam makes no difference: greedy search
beam_search = lambda model, batch, length, beam_size, **options: greedy_search(
    model, batch, length
)

# null: a finished hypothesis does not close its place


def plain_beam(model, source, max_length, beam_size, search=plain_beam):
    return search(model, source, max_length, beam_size + 1)


# %% claim: Not one of the 300 held-out
# null: the cache permuted as it must be
muddled = correct

# null: every translation changes
muddled = [*reversed(correct[:-1]), muddled[-1]]

# %% claim: For twenty held-out sentences
# null: greedy search in place of the search that proves
most_probable = lambda ids: (greedy_search(model, [ids], 32)[0], 0)

# null: the beam makes no difference
beam_search = lambda model, batch, length, beam_size: greedy_search(
    model, batch, length
)

# %% claim: By log-probability the short
# null: no normalisation
length_normalised = lambda score, length, alpha: score

# null: divided by the length itself
length_normalised = lambda score, length, alpha: score / length**alpha

# %% claim: Without a penalty, wider beams
# null: the beam makes no difference
curve_of = curve
curve = lambda seed, alpha, what: [curve_of(seed, alpha, what)[0]] * len(sizes)

# null: the penalty makes no difference
curve_of = curve
curve = lambda seed, alpha, what: curve_of(seed, 0.0, what)

# null: nothing is lost to be won back
lost, back = [0, 0, 0], [0, 0, 0]

# %% claim: On sentences like the hard one
# null: the beam finds what greedy search finds
by_beam = by_greedy

# null: what greedy search finds is more probable
by_beam, by_greedy = by_greedy, by_beam

# %% claim: On the real sentences a beam
# null: a beam brings nothing
gains = [0.0] * len(gains)

# null: gains of either sign, by chance
gains = [gains[0], -gains[1], gains[2]]

# null: beams change a translation
searched = beam_search
beam_search = lambda model, batch, length, size, **options: [
    *searched(model, batch, length, size, **options)[:-1],
    [],
]

# %% claim: Changing *amie* to *ami*
# null: always her
translator.translate = lambda sentence, beam_size, translate=translator.translate: (
    translate(sentence.replace("ami ", "amie "), beam_size)
)

# null: the words in the right order
reversed = list

# %% claim: Only one of the five
# null: one probability for all
doubtful = dict.fromkeys(doubtful, 0.5)

# null: all are translated rightly
translator.translate = lambda sentence, beam_size: unusual[sentence]

# null: none is translated rightly
translator.translate = lambda sentence, beam_size: sentence

# %% claim: The four outputs equal those
# null: the keys are not kept
outputs = [vector @ W_V for vector in vectors]

# null: no causal mask
attend = F.scaled_dot_product_attention
F.scaled_dot_product_attention = lambda *three, is_causal: attend(*three)

# %% claim: At temperature $0.5$ more
# null: temperature makes no difference
at_temperature = dict.fromkeys(at_temperature, at_temperature[1.0])

# null: no draw is divided by its temperature
drawing = sample
sample = lambda model, sources, length, temperature, generator: drawing(
    model, sources, length, generator=generator
)
