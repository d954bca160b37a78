# %% claim: Nine changes are named
# null: nothing was changed
named = {change: [] for change in CHANGES}

# null: one cause for everything
named = {change: ["future-leak-no-mask"] for change in CHANGES}

# %% claim: A softmax before CrossEntropyLoss
# null: both are log-softmax
twice = harmless

# null: both are softmax
harmless = twice
