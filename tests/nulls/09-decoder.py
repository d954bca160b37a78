# %% claim: Ours and PyTorch's layer agree on outputs and on the
# null: weights of their own
copy_weights = lambda ours, theirs: None

# null: the masks make no difference
forward = DecoderLayer.forward
DecoderLayer.forward = lambda self, x, memory, source_mask=None, target_mask=None: (
    forward(self, x, memory, may_attend[:, None, None, :], causal_mask(6))
)

# %% claim: Shuffled memory vectors with a shuffled mask change nothing.
# null: the decoder reads positions in the memory
forward = model.decoder.forward
model.decoder.forward = lambda x, memory, *masks: forward(
    x, memory + torch.arange(memory.size(1))[:, None], *masks
)

# null: the memory is not read
forward = model.decoder.forward
model.decoder.forward = lambda x, memory, *masks: forward(x, 0 * memory, *masks)

# %% claim: After self-attention, the queries of all later positions
# null: no self-attention
layer_of = model.decoder.layers[0]
layer_of.residuals[0].forward = lambda x, sublayer: x

# null: no causal mask
causal_mask = lambda length: None

# %% claim: One masked pass equals six growing passes, in its scores
# null: no causal mask
at_once = Translator(num_layers=2, causal=False).double()(source, written)

# null: the mask makes no difference
translator_of = Translator
Translator = lambda num_layers, causal: translator_of(num_layers=num_layers)

# %% claim: After 140 steps more than 98% of the held-out sentences are
# null: no training
torch.manual_seed(0)
trained_model = Translator()

# null: the source is hidden
torch.manual_seed(0)
trained_model = Translator(reads_source=False)
trained_losses = train(trained_model)

# %% claim: Each deciding French word gets more than half of the weight.
# null: even weights
cross_weights = torch.full_like(cross_weights, 1 / 5)

# null: an untrained model
torch.manual_seed(0)
self_weights, cross_weights = look(Translator(), sources[1:2], written)

# null: word for word in the order of the French
cross_weights = torch.eye(6)[:, :5][None]

# %% claim: Without shift or mask the loss falls below a twentieth of
# null: neither makes a difference
results["no shift"] = results["no causal mask"] = results["as it should be"]

# null: head 1 of every seed is that of the first
results["as it should be"] = results["as it should be"][:1] * 3

# null: the loss shows it: as with the source hidden
results["no causal mask"] = results["source hidden"]

# %% claim: With the source hidden, every source gets the same sentence.
# null: the shift makes no difference
results["no shift"] = results["as it should be"]

# null: hiding the source makes no difference
results["source hidden"] = results["as it should be"]

# null: the loss of a guess among all English words
losses = torch.full((50,), math.log(len(english)))
results["source hidden"] = [(model, losses) for model, _ in results["source hidden"]]

# %% claim: Fed its own vectors the model is right in none of the
# null: vectors are as good as words
right = exact(trained_model)

# null: what it is fed in training makes no difference
learned[True, 48] = learned[False, 48]

# null: own words never teach
learned[True, 96] = learned[True, 24]

# %% claim: One position at a time gives the outputs of the whole pass.
# null: nothing is kept of the past
step_of = one_step
one_step = lambda layer, x, past, memory: (step_of(layer, x, past, memory)[0], past)

# null: the source's keys are projected for each row
step_of = one_step
one_step = lambda layer, x, past, memory: step_of(
    layer, x, past, layer.cross_attention.keys_values(encoded, encoded)
)


# %% claim: With the source hidden, the encoder's gradient is zero.
# null: hidden or not, the source is read
class Translator(Translator):
    def __init__(self, num_layers, reads_source):
        super().__init__(num_layers=num_layers, reads_source=True)


# null: the memory is cut off from the loss
memory_of = Translator.memory
Translator.memory = lambda self, source: memory_of(self, source).detach()
