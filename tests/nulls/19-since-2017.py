# %% claim: RMSNorm gives the same numbers
# null: layer norm in its place
RMSNorm = lambda d_model: nn.LayerNorm(d_model)

# %% claim: Rotated, scores at one distance
# null: nothing is rotated, and positions are added to both sides
scores = {"rotated": scores["sines added"], "sines added": scores["sines added"]}

# null: sines added leave distances alone too
scores = {"rotated": scores["rotated"], "sines added": scores["rotated"]}

# %% claim: `RotaryEmbedding` turns
# null: the sine has the wrong sign in one column


def wrong_sign(self, x, positions=None):
    positions = torch.arange(x.size(-2)) if positions is None else positions
    first, second = x.chunk(2, dim=-1)
    angle = positions[:, None] * self.base ** -(torch.arange(0, 16, 2) / 16)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos + second * sin, second * cos + first * sin), -1)


RotaryEmbedding.forward = wrong_sign

# null: positions off, in both
RotaryEmbedding.forward = lambda self, x, positions=None: x
rotate_halves = lambda x: x

# %% claim: With a set for each head
# null: sets are taken in turn, not in groups


def grouped_attention(query, key, value, mask):
    times = query.size(1) // key.size(1)
    key, value = key.repeat(1, times, 1, 1), value.repeat(1, times, 1, 1)
    return F.scaled_dot_product_attention(query, key, value, mask)


# null: no mask
forward = MultiHeadAttention.forward
MultiHeadAttention.forward = lambda self, q, k, v, mask: forward(self, q, k, v)

# %% claim: With two thirds of the width
# null: as wide as the feed-forward network
SwiGLU_ = SwiGLU
SwiGLU = lambda d_model, d_ff: SwiGLU_(d_model, 2048 if d_ff == 1365 else d_ff)

# null: the gate passes through a sigmoid, which does not close
SwiGLU.forward = lambda self, x: self.contract(self.gate(x).sigmoid() * self.expand(x))

# %% claim: Rotary positions alone bring
# null: every part brings the same share of what all bring
share = (mean(test[""]) - mean(test[names[-1]])) / (len(names) - 2)
test |= {name: [loss - share for loss in test[""]] for name in names[1:-1]}

# null: no part brings anything
test = dict.fromkeys(test, test[""])

# null: one of the other four brings as much as the gate
test["no biases"] = test["SwiGLU"]

# null: the other four all cost
test |= dict.fromkeys(("RMSNorm", "no biases", "tied"), test["grouped queries"])

# %% claim: At the highest rate
# null: the place of the norm makes no difference
measured = lambda name, rate, what, m=measured: m("", rate, what)

# %% claim: Our Llama and the library's
# null: another base of the rotation
other = theirs.config.to_dict()
other["rope_parameters"] = {"rope_type": "default", "rope_theta": 100.0}
llama = from_llama(theirs.state_dict(), other)
with torch.no_grad():
    difference = (llama(ids) - theirs(ids).logits).abs().max().item()

# null: the continuation of another prompt
continued = greedy_search(PromptDecoder(llama), ids[1:, :5], 30)[0]

# %% claim: A number for each distance
# null: the input's positions bring nothing
ways["none"] = test[""]

# null: positions in every layer are no better than in the input
ways["sines in every layer"] = test[""]

# null: it is the turning
ways["a number for each distance"] = ways["sines in every layer"]

# %% claim: After 2,400 steps no model
# null: what 600 steps show lasts
more = test

# %% claim: The more later parts
# null: all fit the training text alike
fitted = dict.fromkeys(fitted, fitted["rotary"])

# %% claim: A token's output is the sum
# null: all experts serve every token
forward = ExpertLayer.forward


def everyone(self, x):
    self.active = len(self.experts)
    return forward(self, x)


ExpertLayer.forward = everyone

# null: shares are all alike


def alike(self, x):
    chosen = self.router(x).topk(self.active, dim=-1).indices
    outputs = torch.stack([expert(x) for expert in self.experts], dim=-2)
    rows = chosen[..., None].expand(*chosen.shape, x.size(-1))
    return outputs.gather(-2, rows).mean(dim=-2)


ExpertLayer.forward = alike

# %% claim: From 128 characters on
# null: rotary positions read any length
longer_texts["rotary"] = [dict.fromkeys(bits, 2.2) for bits in longer_texts["rotary"]]

# null: sines reach as far
longer_texts["sines"] = longer_texts["rotary"]

# null: far beyond, rotary positions are the better ones
for turned, added in zip(longer_texts["rotary"], longer_texts["sines"]):
    for context in ("128", "256", "512"):
        turned[context], added[context] = added[context], turned[context]

# %% claim: The story is the documented one
# null: another story
real["is_the_documented_story"] = False

# null: the logits differ in their last bits
against["largest_difference"] = 1e-6

# %% claim: Without the rotation or the gate
# null: positions do not matter to it
without["rotation"] = without["as it is"]

# null: it does not matter which norm
without["RMSNorm"] = without["as it is"]

# null: sharing saves nothing
without["grouped queries"] = without["no biases"]

# %% claim: On vectors of mean zero
# null: their mean is not zero
vectors = vectors + 1
layer_norm_of_centred = layer_norm.forward
layer_norm.forward = lambda x: layer_norm_of_centred(x) + 1

# %% claim: With the same weights, this layer
# null: the norms come after the additions
LlamaLayer.forward = lambda self, x, mask: self.norms[1](
    self.norms[0](x + self.attention(x, x, x, mask))
)

# null: nothing is rotated
build = LlamaLayer.__init__


def unrotated(self, *args, **sizes):
    build(self, *args, **sizes)
    self.attention.rotary = None


LlamaLayer.__init__ = unrotated
