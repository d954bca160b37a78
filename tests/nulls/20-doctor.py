# %% claim: All four models learn
# null: no training
trained = {fault: (Little(fault=fault).eval(), [4.0, 0.05]) for fault in FAULTS}

# null: a loss that does not fall
trained = {fault: (model, losses[:1] * 2) for fault, (model, losses) in trained.items()}

# %% claim: The right model writes
# null: the wrong models are right
written = dict.fromkeys(FAULTS, share_written(trained[""][0]))

# null: nothing was learned
written = dict.fromkeys(FAULTS, share_written(Little().eval()))

# %% claim: An untrained model shows
# null: four right models
models = {fault: Little() for fault in FAULTS}

# null: a property that never fails
future_leak = lambda run, ids, words: []

# %% claim: Padding moves the unmasked
# null: both are masked
with torch.no_grad():
    change["unmasked"] = padding_leak(masked, ids, 0)

# null: neither is masked
with torch.no_grad():
    change["masked"] = padding_leak(unmasked, ids, 0)

# %% claim: With attention held still
# null: heads split with a transpose
models["view"] = Little()

# null: attention is not held
moved_places = lambda model, hold, place=2: [2, 3, 4, 5]

# %% claim: The doctor names all
# null: four right models
reports = dict.fromkeys(FAULTS, reports[""])

# null: one cause for everything
reports = dict.fromkeys(FAULTS, reports["no mask"])
