# %% claim: A decoder without cross-attention
# null: the encoder has weights of its own
encoder = Encoder(32, 4, 64, num_layers=2)
difference = (encoder(x, mask) - expected).abs().max()

# null: neither has a mask
expected = encoder(x)

# %% claim: The package's model and the plain one
# null: the plain model keeps weights of its own
PlainLanguageModel.load_state_dict = lambda self, state: None

# null: neither has a mask
encode_all = Encoder.forward
Encoder.forward = lambda self, x, mask=None: encode_all(self, x)

# %% claim: The probabilities of all characters sum to one
# null: what the counts give up is lost
give = NGramModel.probability
NGramModel.probability = lambda self, text, place: (
    max(self.count[text[place - 1 : place + 1]] - 0.75, 0) / 1000
)

# null: nothing is given up
NGramModel.__init__.__defaults__ = (0.0,)

# null: shorter contexts count how often, not behind how many tokens
build = NGramModel.__init__


def build_raw(self, text, order, size):
    build(self, text, order, size)
    self.count = Counter(
        text[i : i + n] for n in range(1, order + 1) for i in range(len(text) - n + 1)
    )
    self.kinds, self.total = Counter(ngram[:-1] for ngram in self.count), Counter()
    for ngram, count in self.count.items():
        self.total[ngram[:-1]] += count


NGramModel.__init__ = build_raw

# %% claim: On *Alice* counts are ahead
# null: 64 characters are worth as much as 32
attended[64] = attended[32].clone()

# null: the model is as good as counts of the same context
attended |= {n: counted[n + 1] for n in (1, 2, 3, 4, 6, 8)}

# null: with all its context the model is as good as the best count
attended[32] = counted[best_order].clone()

# %% claim: On the phrasebook the model is ahead
# null: the model of words predicts as well as counts
attended_words = {n: counted_words[min(n + 1, 9)] for n in attended_words}

# null: the model of words ends at the best count
attended_words[32] = best_words.clone()

# %% claim: On *Alice* counts are ahead
# null: context makes no difference
attended = dict.fromkeys(attended, attended[32])

# %% claim: On the most captions
# null: the model and the counts are even
page_models = dict(best_counts)

# null: the larger model is ahead of the counts
large["bits"]["32"] = best_counts[max(best_counts)] - 0.02

# null: the larger model is no nearer than the page's
large["bits"]["32"] = page_models[max(page_models)]

# %% claim: Three seeds of the model
# null: seeds differ
seeds[0] += 0.05

# %% claim: On the most captions
# null: more text does not help the counts
best_counts = dict.fromkeys(best_counts, best_counts[max(best_counts)])

# %% claim: With a discount of a half
# null: the discount makes no difference
NGramModel.discount = property(lambda self: 0.75, lambda self, discount: None)

# null: the counts are no better than the model
attended[32] = counted[7]

# %% claim: Cached search writes
# null: every cached token is taken for the first
forward = model.position.forward
model.position.forward = lambda x, start=0: forward(x)

# null: the cache holds other keys and values
for layer in model.encoder.layers:
    keys_values = layer.self_attention.keys_values
    layer.self_attention.keys_values = lambda k, v, places=None, of=keys_values: (
        of(k, v) if len(k[0]) > 1 else of(k, v * 0)
    )

# %% claim: The higher the temperature
# null: the temperature does nothing
known_words = {
    (temperature, top_p): sampled_words(0.8, top_p)[1]
    for temperature, top_p in known_words
}

# null: the nucleus does nothing
known_words[1.5, 0.8] = sampled_words(1.5, 1.0)[1]

# %% claim: One stack translates
# null: each French sentence has the translation of another
pairs = zip(outputs[1:] + outputs[:1], unseen)
exact = sum(out == list(target) for out, (_, target) in pairs) / 1000

# null: the stack is as large as the encoder-decoder
shipped = one_stack

# %% claim: If English may not attend
# null: the French need not be seen
exact_without["English to French"] = exact_without["none"]

# null: the French need not see itself
exact_without["French to French"] = exact_without["none"]

# null: the English need not see itself
exact_without["English to English"] = exact_without["none"]

# %% claim: One stack translates
# null: by itself it writes nothing
translated = lambda sources: [[] for _ in sources]

# %% claim: If English may not attend
# null: the head attends evenly
even_rows = causal_mask(len(names)).float()
top = even_rows[cut : cut + 5].argmax(dim=1)

# %% claim: With either layer's attention off
# null: the model is not trained
without["nothing"] = (*copying(train_copying(2, steps=1)[0]), 0.0)

# null: switching off changes nothing
without = dict.fromkeys(without, without["nothing"])

# null: without a head each letter is guessed
for layer in ("layer 2's attention", "layer 1's attention"):
    without[layer] = (math.log2(LETTERS) - 0.01, without[layer][1], 1 / LETTERS)

# null: the feed-forward networks copy
without["both feed-forwards"] = without["layer 1's attention"]

# null: one layer knows only which letters there are
shallow_history[-1] = (800, bag, shallow_history[-1][2])

# null: one layer is enough
shallow_history = history

# null: the first layer attends evenly
even_weights = causal_mask(32).float()
even_weights = (even_weights / even_weights.sum(-1, keepdim=True)).expand(
    2, 200, 32, 32
)
attention_of = lambda *_: even_weights

# null: one layer learns nothing
shallow_history[-1] = shallow_history[0]

# null: in blocks of four each letter finds its own earlier occurrence
find = attention_of
attention_of = lambda model, ids: find(model, ids).roll(-1, -1)
share_induced = induced(fours.repeat(1, 2)).double().mean()
attention_of = find

# %% claim: No head of the model of *Alice*
# null: a head attends to the stripe
stripe = torch.zeros(100, 4, 63, 63)
stripe[:, :, range(32, 63), range(1, 32)] = 1.0
model.encoder.layers[1].self_attention.weights = lambda *_: stripe

# %% claim: With the same weights, our logits
# null: other weights
ours = from_gpt2(
    transformers.GPT2LMHeadModel(theirs.config).state_dict(), theirs.config
)
difference = (ours(ids) - theirs(ids).logits).abs().max()

# null: another number of heads
ours = from_gpt2(theirs.state_dict(), theirs.config.to_dict() | {"n_head": 2})
difference = (ours(ids) - theirs(ids).logits).abs().max()

# null: generated without positions
ours.position.forward = lambda x, start=0: x

# null: a weight is lost on the way back
return_weights = to_gpt2
to_gpt2 = lambda model: (
    return_weights(model) | {"transformer.wpe.weight": torch.zeros(48, 32)}
)

# %% claim: Each exchange is needed
# null: our model has a ReLU
for layer in ours.encoder.layers:
    layer.feed_forward.activation = nn.ReLU()

# null: the width's root is one
math.sqrt = lambda number: 1.0

# %% claim: In the stored comparison
# null: other tokens are generated
gpt2["same_tokens"] = False

# null: the logits differ
gpt2["largest_difference"] = 2e-5

# null: one token, over and over
gpt2["different_tokens"] = 1

# %% claim: On *Alice* counts are ahead
# null: a second letter brings nothing
counted[3] = counted[2]

# %% claim: From three prompts greedy search
# null: greedy search does not repeat itself
write = lambda model, prompt, length, temperature: " ".join(map(str, range(1000)))

# null: what is sampled repeats itself, too
write_warm = write
write = lambda model, prompt, length, temperature: write_warm(model, prompt, length, 0)

# %% claim: The package's `train_on_text`
# null: the labels are the inputs
cut = random_windows
random_windows = lambda ids, steps: ((rows, rows) for rows, _ in cut(ids, steps))

# %% claim: Halving the temperature squares
# null: the temperature does nothing
at_temperature = dict.fromkeys(at_temperature, at_temperature[1.0])

# null: the logits are multiplied by the temperature
at_temperature = {T: (letters_after_t * T).softmax(dim=-1) for T in at_temperature}
