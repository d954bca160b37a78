# %% claim: Of batches of 64
# null: sentences are taken as they come
batches = as_they_come
shares = [1 - tokens / positions(each) for each in (as_they_come, batches)]

# null: the translations stay in the order of the batches
translate = translator.translate
translator.translate = lambda found: (
    translate(found)
    if isinstance(found, str)
    else translate(sorted(found, key=lambda each: len(translator.encode(each))))
)

# %% claim: The log-probability is
# null: eos is not counted
lists = {
    size: [each._replace(log_probability=each.log_probability + 0.1) for each in found]
    for size, found in lists.items()
}

# null: the list is not sorted by score
lists = {
    size: sorted(found, key=lambda each: each.text) for size, found in lists.items()
}

# null: a wider beam does not find it either
places = {}

# null: there is no length penalty
lists = {
    size: translator.n_best([sentence], size, length_penalty=0.0)[0] for size in lists
}

# null: one of the four has *black*
lists[4] = [lists[4][0]._replace(text=right), *lists[4][1:]]

# %% claim: Of batches of 64
# null: a batch has the limit of its longest
translator.max_length_for = lambda ids: len(ids)
