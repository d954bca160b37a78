# %% claim: The training at the end
# null: the right model is the other one
reports[1] = reports[2]

# %% claim: A mask that is off by one
# null: the mask is right
reports[2] = reports[1]
