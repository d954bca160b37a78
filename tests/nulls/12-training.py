# %% claim: PyTorch's `F.cross_entropy`
# null: even probabilities by hand
p = torch.full((4,), 0.25)

# null: the untrained model guesses evenly
model = lambda source, decoder_input: torch.zeros(
    *decoder_input.shape, english.vocab_size
)

# %% claim: `label_smoothed_loss` agrees with four
# null: no smoothing
smoothed = label_smoothed_loss
label_smoothed_loss = lambda logits, labels, smoothing=0.1, pad_id=PAD_ID: smoothed(
    logits, labels, 0.0, pad_id
)

# null: the share of ε goes to the wrong words alone
smoothed = label_smoothed_loss
label_smoothed_loss = lambda logits, labels, smoothing=0.1, pad_id=PAD_ID: smoothed(
    logits, labels, smoothing * logits.size(-1) / (logits.size(-1) - 1), pad_id
)

# null: padding counts
smoothed = label_smoothed_loss
label_smoothed_loss = lambda logits, labels, smoothing=0.1, pad_id=PAD_ID: smoothed(
    logits, labels, smoothing, -1
)

# %% claim: At the floor the gradient
# null: no smoothing
smoothed = label_smoothed_loss
label_smoothed_loss = lambda logits, labels, smoothing=0.1: smoothed(
    logits, labels, 0.0
)

# null: the floor of a neighbouring ε
floor_of = floor
floor = lambda vocab_size: floor_of(vocab_size, 0.11)

# %% claim: The nudge and `backward`
# null: the slope of another weight
row = row + 1

# null: the sign turned round
nudged = -nudged

# null: the longest step lowers the loss, too
after = {**after, 10.0: after[1.0] - 0.1}

# null: no step changes the loss
after = dict.fromkeys(after, before.item())

# %% claim: Over twenty random gradients
# null: gradient descent


def adam(weights, gradients, rate):
    return weights - rate * sum(gradients)


# null: β₂ of PyTorch's default
rule = adam
adam = lambda weights, gradients, rate: rule(weights, gradients, rate, beta2=0.999)

# %% claim: The rate peaks at the end
# null: a constant rate
noam_learning_rate = lambda step, d_model, warmup_steps: (
    (d_model * warmup_steps) ** -0.5
)

# null: a linear fall after the warm-up
noam_learning_rate = lambda step, d_model, warmup_steps: (
    (d_model * warmup_steps) ** -0.5
    * min(step / warmup_steps, (10_001 - step) / (10_001 - warmup_steps))
)

# %% claim: Ten steps of `train`
# null: no clipping in `fit`
fit_clipped, clip = fit, nn.utils.clip_grad_norm_


def fit(*arguments):
    nn.utils.clip_grad_norm_ = lambda parameters, max_norm: None
    losses = fit_clipped(*arguments)
    nn.utils.clip_grad_norm_ = clip
    return losses


# null: batches in another order in `fit`
fit_in_order = fit
fit = lambda model, batches, rate: fit_in_order(model, batches[::-1], rate)

# null: the model made again has another seed
seeds = iter(range(3))
model_of = phrasebook_model
phrasebook_model = lambda seed: model_of(seed=max(0, next(seeds) - 1))

# %% claim: After a hundred steps the complete
# null: an untrained model
model = phrasebook_model(seed=0)
with torch.no_grad():
    ids = make_batch(eight)
    logits = model(ids.source, ids.decoder_input)
    loss = label_smoothed_loss(logits, ids.labels).item()
fitted["complete model"] = loss, exact_match(model, eight)

# null: a model without residuals fits too
fitted["no residuals"] = fitted["complete model"]

# %% claim: The model translates at least 98%
# null: an untrained model
model = phrasebook_model(seed=0)

# null: a model of fewer steps
for metrics in train(model := phrasebook_model(seed=0), examples, half):
    if metrics.step == 100:
        break

# null: a loss and translations that rise together
scores = {**scores, 50: 0.5}

# null: the sentences are right at step 50
said = {**said, 50: said[len(history)]}

# null: the end is no better than step 25
said = {**said, len(history): said[25]}

# %% claim: Three of the changes ruin
# null: pre-norm is worse in all three seeds, too
wrong["pre-norm"] = [most + 1] * 3

# null: no part makes a difference
variants = dict.fromkeys(variants, variants["whole"])

# null: the cooldown makes no difference
variants = {**variants, "no-cool-down": variants["whole"]}

# null: PyTorch's weights are as bad as × 5
variants = {**variants, "torch-init": variants["large-init"]}

# %% claim: Without warm-up, two of three
# null: the model without positions is no faster
without = "no-positions"
variants = {**variants, without: variants["whole"]}

# null: warm-up makes no difference
variants = {**variants, "no-warmup": variants["whole"]}

# null: pre-norm needs it too
variants = {**variants, "pre-norm-no-warmup": variants["no-warmup"]}

# %% claim: The bad gradient turns
# null: it is no matter which mean has it
variants["shock-mean"] = variants["shock-square"]

# null: clipping makes no difference
walks["not clipped"] = walks["clipped"]

# null: the bad gradient in m too, not in v alone
steady = slope

# %% claim: `clip_grad_norm_` divides
# null: no clipping
nn.utils.clip_grad_norm_ = lambda parameters, max_norm: None

# null: each tensor clipped by its own norm
clip = nn.utils.clip_grad_norm_
nn.utils.clip_grad_norm_ = lambda parameters, max_norm: [
    clip([weight], max_norm / 10) for weight in parameters
]

# %% claim: Every run without smoothing
# null: smoothing makes no difference
variants = {**variants, "no-smoothing": variants["whole"]}

# %% claim: With a thousand sentences
# null: dropout makes no difference
variants = {**variants, "few-dropout": variants["few"], "dropout": variants["whole"]}

# null: dropout helps with fresh sentences too
variants = {**variants, "whole": variants["dropout"], "dropout": variants["whole"]}

# %% claim: Without the causal mask every
# null: the mask makes no difference
variants = {**variants, "no-causal-mask": variants["whole"]}

# null: the held-out loss gives the leak away
leaking = variants["no-causal-mask"]["runs"].items()
louder = {
    seed: {**run, "cross_entropy": 2 * run["cross_entropy"]} for seed, run in leaking
}
variants = {**variants, "no-causal-mask": {"runs": louder}}

# null: the square root makes no difference
variants = {**variants, "no-root": variants["whole"]}

# null: positions make no difference
variants = {**variants, "no-positions": variants["whole"]}

# null: residuals make no difference
variants = {**variants, "no-residuals": variants["no-root"]}

# %% claim: Each broken model fails
# null: nothing is taken out
broken.without_root = lambda model: model

# null: tests that always pass
properties = dict.fromkeys(properties, lambda model, config: True)

# null: tests that always fail
properties = dict.fromkeys(properties, lambda model, config: False)

# %% claim: With such batches the same start
# null: larger batches make no difference
variants = {**variants, "no-warmup-larger-batches": variants["no-warmup"]}
