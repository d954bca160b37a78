# %% claim: *Lowest*, none
# null: no merges: letters
lowest = tuple("▁lowest")

# null: the merges in the opposite order
lowest = tuple("▁lowest")
for pair in reversed(merges):
    lowest = merge(lowest, pair)

# %% claim: Decoding gives each sentence back
# null: a vocabulary of whole words


class WholeWords:
    words = sorted({word for phrase in phrases for word in moses_style(phrase).split()})

    def encode(self, sentence):
        return [
            4 + self.words.index(word) if word in self.words else UNKNOWN_ID
            for word in moses_style(sentence).split()
        ]

    def decode(self, ids):
        return " ".join("?" if i == UNKNOWN_ID else self.words[i - 4] for i in ids)


tokenizer = WholeWords()

# null: no letter is lost
encode = tokenizer.encode
tokenizer.encode = lambda sentence: [i for i in encode(sentence) if i != UNKNOWN_ID]

# %% claim: No subword of the validation
# null: a vocabulary of words
german = {**german, "validation_pieces_unknown": german["validation_words_new"]}

# null: training has every word
english = {**english, "validation_words_new": 0}

# %% claim: A larger vocabulary makes
# null: the size makes no difference
counts = {**counts, "by_types": [counts["by_types"][0]] * 6}

# null: a larger one makes longer sentences
counts = {**counts, "by_types": counts["by_types"][::-1]}

# %% claim: The number computed by hand
# null: no brevity penalty
by_hand = by_hand / brevity

# null: the arithmetic mean of the precisions
by_hand = 100 * brevity * sum(precisions) / 4

# %% claim: The translation with the same meaning
# null: the reference has its words
truth = [both[0]]
bleus = [corpus_scores([sentence], truth, text="tok").bleu for sentence in both]

# %% claim: From the first epoch to the third
# null: no training
config = replace(config, learning_rate=1e-12)
model = translation_model(dataset.source_tokenizer.vocab_size, sizes)
epochs = [
    metrics
    for metrics in train_translator(model, dataset, config)
    if metrics.validation_loss is not None
]

# null: BLEU does not rise
epochs[-1] = epochs[-1]._replace(bleu=epochs[0].bleu)

# %% claim: Our mean differs
# null: the recurrent model, spread as our seeds are
tests = [score - tests[0] + rnn["test"]["bleu"] for score in tests]

# null: a published score one point higher
PUBLISHED += 1

# null: runs with other choices
seeds = {**seeds, "3": runs["en-de-low-rate"]["1"]}

# %% claim: Only one of the three seeds
# null: BLEU rises evenly
seeds = {
    seed: {**run, "curve": [{**p, "bleu": p["epoch"]} for p in run["curve"]]}
    for seed, run in seeds.items()
}

# null: all stop after as many epochs
seeds = dict.fromkeys(seeds, seeds["1"])

# %% claim: With the moving average, a beam
# null: the beam makes no difference
every_way = validation_bleu
validation_bleu = lambda average, beam_size, penalty: every_way(average, 1, penalty)

# null: the last epoch is as good as the average
every_way = validation_bleu
validation_bleu = lambda average, beam_size, penalty: every_way(0, beam_size, penalty)

# %% claim: At the highest rate
# null: the rate makes no difference: other seeds of the recipe
runs = {**runs, "en-de-no-warmup": {"1": seeds["2"], "2": seeds["3"]}}

# null: the mean rate costs as much: the rise is what was missing
cold, lower = runs["en-de-no-warmup"], runs["en-de-no-warmup-lower"]
lower = {seed: {**lower[seed], "curve": cold[seed]["curve"]} for seed in cold}
runs = {**runs, "en-de-no-warmup-lower": lower}

# null: the order of the norm makes no difference: another seed of the recipe
runs = {**runs, "en-de-post-norm": {"1": {"curve": seeds["2"]["curve"][:12]}}}

# %% claim: After three epochs the lower
# null: the rate makes no difference: the recipe's other seeds
runs = {**runs, "en-de-low-rate": {"1": seeds["2"], "2": seeds["1"]}}

# null: overtaken two epochs earlier
overtaken -= 2

# %% claim: After 20 epochs the recurrent
# null: the Transformer beside itself
rnn = {**rnn, "curve": seeds["1"]["curve"][:20]}

# null: a run that has stopped improving
last = {**rnn["curve"][-2], "epoch": 20}
rnn = {**rnn, "curve": [*rnn["curve"][:-1], last]}

# %% claim: The rarer the words
# null: the control alone: another sentence's reference
found = chance

# null: all words are found alike
found = [sum(found) / len(found)] * len(found)

# null: the most frequent words are found as the group before, after the control
share = (found[-2] - chance[-2]) / (1 - chance[-2])
found = [*found[:-1], chance[-1] + (1 - chance[-1]) * share * 0.99]

# %% claim: Both runs without dropout
# null: dropout makes no difference: another seed of the recipe
curves = {**curves, "en-de-no-dropout": seeds["2"]["curve"][:14]}

# null: BLEU goes on rising after the loss has turned
for kind in ("no-dropout", "small-no-dropout"):
    for point in curves[f"en-de-{kind}"]:
        point["bleu"] = 30 + point["epoch"] / 2

# null: the recipe ends when they do
seeds = {**seeds, "1": {**seeds["1"], "curve": seeds["1"]["curve"][:14]}}

# %% claim: Drawing the same sentences
# null: each system has draws of its own
gains = {name: values - values.roll(1) for name, values in resampled.items()}
gains = dict(list(gains.items())[:2])

# null: a score has no uncertainty
resampled = {name: 0 * values for name, values in resampled.items()}

# %% claim: Logits and gradients of our model
# null: the features in their order
_feature_order = torch.arange
ours = from_marian(theirs.state_dict(), theirs.config)
logits = ours(read, written)[..., :-1]
difference = (logits - expected).abs().max()

# null: ReLU in the place of swish
for layer in (*ours.encoder.layers, *ours.decoder.layers):
    layer.feed_forward.activation = nn.ReLU()
logits = ours(read, written)[..., :-1]
difference = (logits - expected).abs().max()

# null: the start token is trained where it is read
for embedding in (ours.source_embedding, ours.target_embedding):
    embedding.table.padding_idx = None
logits = ours(read, written)[..., :-1]

# %% claim: Greedily and with beams of 4 and 6
# null: this book's own beam search
from transformer import beam_search

found[6] = beam_search(ours, words, 15, 6)

# null: a model with weights of its own
other = from_marian(MarianMTModel(their_config).state_dict(), their_config)
found[1] = greedy_search(other, words, 14)
