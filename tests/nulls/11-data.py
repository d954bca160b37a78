# %% claim: `tokenize` reads all
# null: no normal form, the plain expression in its place
tokenize = split_words

# null: the plain expression reads every spelling alike
split_words = tokenize

# %% claim: None of the three special
# null: ids from 0, no special tokens


class Vocabulary(Vocabulary):
    def encode(self, words):
        return [index - len(SPECIAL_SYMBOLS) for index in super().encode(words)]


# null: special tokens are words like others


class Vocabulary(Vocabulary):
    def encode(self, words, encode=Vocabulary.encode):
        known = {symbol: i for i, symbol in enumerate(SPECIAL_SYMBOLS)}
        return [known[w] if w in known else encode(self, [w])[0] for w in words]


# %% claim: Up to the last column
# null: labels not shifted
batch = batch._replace(labels=batch.decoder_input)

# null: the decoder reads nothing but <bos>
nothing = batch.decoder_input.clone()
nothing[:, 1:] = PAD_ID
batch = batch._replace(decoder_input=nothing)

# null: shifted by two
both = pad([[BOS_ID, *english_ids, EOS_ID] for _, english_ids in examples])
batch = Batch(batch.source, both[:, :-2], both[:, 2:])

# null: no <eos>
both = pad([[BOS_ID, *english_ids] for _, english_ids in examples])
batch = Batch(batch.source, both[:, :-1], both[:, 1:])

# %% claim: One in six pairs
# null: a random split for both sets
training, test = random_training, random_test

# null: the test set drawn from all sentences
test = sample_pairs(1000, seed=2, held_out=None)

# null: nothing is held out
HELD_OUT = frozenset()

# %% claim: With combinations held out, every
# null: a second random split in place of the held-out one
leaks["held out"] = leaks["random"]

# null: the held-out split in place of the random one
leaks["random"] = leaks["held out"]

# %% claim: With 300 or 1,000 sentences
# null: nothing is gained by having seen the combinations
allowed = honest

# null: the random split reports what held-out combinations report
reported = honest

# null: the gap of 1,000 sentences stays with more
reported = {**reported, 3000: reported[1000]}
honest = {**honest, 3000: honest[1000]}

# %% claim: Batches as they come have over
# null: batches of a fixed number of sentences, as they come
by_tokens = [list(batch) for batch in as_they_come]

# null: the same number of tokens, not sorted by length
order = list(range(20_000))
random.Random(0).shuffle(order)
by_tokens = []
for index in order:
    last = by_tokens[-1] if by_tokens else []
    longest = max(lengths[i] for i in [index, *last])
    if not by_tokens or (len(last) + 1) * longest > 512:
        by_tokens.append([])
    by_tokens[-1].append(index)

# null: words counted, not positions


def cut_by_tokens(lengths, batch_tokens):
    batches = [[]]
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if sum(lengths[i] for i in batches[-1]) + lengths[index] > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


# %% claim: With another seed no batch
# null: sentences of equal length stay in order


def batches_by_tokens(lengths, batch_tokens, rng):
    batches = split_by_tokens(lengths, batch_tokens)
    rng.shuffle(batches)
    return batches


by_tokens = batches_by_tokens(lengths, batch_tokens=512, rng=random.Random(0))

# null: batches in order of length
by_tokens.sort(key=lambda batch: max(lengths[index] for index in batch))

# %% claim: As they come, padding rises
# null: sentences of one length: padding does not depend on the batch size
come_waste = [come_waste[-1]] * len(counts)

# null: batches by tokens waste what batches as they come do
token_waste = come_waste[1:]

# %% claim: The held-out sentences are longer
# null: both are sentences of the random split
sample_pairs_of = sample_pairs
sample_pairs = lambda count, seed, held_out: sample_pairs_of(count, seed, None)
