# %% claim: At least 90 of the
# null: no training
torch.manual_seed(0)
untrained = Translator(Transformer(sizes).eval(), source, target, ("en", "digits"))
translator = untrained

# null: one epoch in place of twenty
import dataclasses

torch.manual_seed(0)
brief = Transformer(sizes)
for _ in train(brief, examples, dataclasses.replace(config, epochs=1)):
    pass
translator = Translator(brief.eval(), source, target, ("en", "digits"))

# %% claim: Of 100 held-out years
# null: saved as it was loaded
folder = Path(tempfile.mkdtemp(dir=folder))
translator.save(folder / "years.safetensors")

# null: tuned without the old pairs
tuned = Translator.load(folder / "numbers.safetensors")
for _ in train(tuned.model, new_examples[: len(train_years)], short):
    pass
folder = Path(tempfile.mkdtemp(dir=folder))
tuned.save(folder / "years.safetensors")

# null: years that it has learned already
translator = tuned

# %% claim: A run cut short and
# null: left where it was cut short
folder = folder / "left"
resumed, _ = run("cut-short", stop_at=12)

# null: taken up with a new Adam
folder = folder / "anew"
torch.optim.Adam.load_state_dict = lambda self, state: None
run("cut-short", stop_at=12)
resumed, ended = run("cut-short")

# %% claim: With characters for the
# null: no training
torch.manual_seed(0)
model = Transformer(model.config).eval()
by_character = Translator(model, source, digits, ("en", "digits"))

# null: the characters in another order
by_character.target_tokenizer.alphabet = "1234567890"

# %% claim: Of 500 questions drawn anew
# null: no training
torch.manual_seed(0)
classifier = Classifier(tokenizer.vocab_size, num_classes=2)

# null: each question with the answer to the next
drawn, held = question, []


def question(rng):
    ids, label = drawn(rng)
    held.append(label)
    return ids, held[-2] if len(held) > 1 else label


# %% claim: Both give the same output
# null: weights of its own
ours = from_torch(nn.Transformer(64, 4, 2, 2, 128, norm_first=True).eval())
with torch.no_grad():
    output = ours(
        reads, writes, mask_from_torch(None, padding), mask_from_torch(future)
    )

# null: the padding as it is
with torch.no_grad():
    output = ours(reads, writes, padding[:, None, None], mask_from_torch(future))

# null: the way back loses half of the bits
there = to_torch
to_torch = lambda ours: {n: w.half().float() for n, w in there(ours).items()}

# %% claim: The maps are those that `need_weights=True`
# null: the maps of the heads in another order
maps = maps.flip(2)

# null: the padding is attended to
maps = maps_by_kind(encoder, reads)["encoder"]

# null: another head is switched off
with torch.no_grad(), ablate_heads(encoder, Head("encoder", 1, 2)):
    without = encoder(reads, shown)

# %% claim: The weights of a single attention
# null: their mean over the heads
weights = weights.mean(dim=1, keepdim=True).expand_as(weights)

# %% claim: One position at a time
# null: the cache forgets the first position
stores[:, :, :, :, 0] = 0
with torch.no_grad():
    steps[1:] = [step(vectors[:, [at]], at) for at in range(1, 5)]

# null: the source's padding is attended to
shown = torch.ones_like(shown)
with torch.no_grad():
    steps = [step(vectors[:, [at]], at) for at in range(5)]

# %% claim: Each step with the cache gives the logits
# null: every vector stands at place 0
Places.forward = lambda self, x, start=0: x + self.table.weight[: x.size(1)]

# null: the loaded model is a fresh one
again = with_our_stacks(Yours())

# %% claim: The exported program gives
# null: an untrained model is exported
other = Transformer(model.config).eval()
program = export(other, (source_ids, target_ids), dynamic_shapes=shapes)

# null: exported for one shape alone
program = export(model, (source_ids, target_ids))

# %% claim: The array holds a weight
# null: scores, not weights
weights = weights * 2

# null: the layers of the encoder
weights = maps.encoder[0].numpy()

# %% claim: The weights come back
# null: another model was saved
alone = Transformer(sizes).eval()

# %% claim: Read in parts, a step
# null: one part in place of all
in_parts = smaller

# null: the smaller batch is the whole one
smaller = at_once

# %% claim: With the other library
# null: no training
torch.manual_seed(0)
by_their_pieces = Translator(
    Transformer(fits).eval(), wrapped, target, ("en", "digits")
)

# null: ids that are not moved
Wrapped.encode = lambda self, sentence: self.theirs.encode(sentence).ids

# %% claim: Both searches find
# null: the fast one has another model
torch.manual_seed(0)
fast = greedy_search(FastDecoder(Transformer(sizes).eval()), sentences, 8)

# %% claim: Each gives a vector
# null: no causal mask
causal_mask = lambda length: torch.ones(length, length, dtype=torch.bool)
decoded = decoder_layer(x, memory)

# null: padding is attended to
hides_padding = torch.ones_like(hides_padding)

# %% claim: With this attention
# null: the plain attention
QuietAttention.attend = MultiHeadAttention.attend

# null: no training
torch.manual_seed(0)
model = Transformer(sizes).eval()

# %% claim: Without a model to fill
# null: a file of the package's own attention
folder = Path(tempfile.mkdtemp(dir=folder))
Translator(Transformer(sizes), source, target).save(folder / "quiet.safetensors")

# null: it is made again without its weights
torch.manual_seed(1)
again = quiet_model()

# %% claim: The warning names the layer
# null: the class is in the encoder alone
# raises: ValueError
said = []

# null: another model
torch.manual_seed(5)
model = Transformer(sizes).eval()
