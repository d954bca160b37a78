# %% claim: Where the save fails
# null: the file is written in place


def write_atomically(path, data):
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    os.replace(path, path)


# null: what is half written stays
Path.unlink = lambda self, missing_ok=False: None

# null: another file's remains go too
remove_partial_files = lambda path: [p.unlink() for p in path.parent.glob("*.part")]

# %% claim: The same tensors and text
# null: the numbers in another order
data = data[:-12] + data[-4:] + data[-12:-4]

# null: the file holds the time
write_as_it_is, times = write_tensors, iter("123")
write_tensors = lambda path, tensors, text: write_as_it_is(
    path, tensors, {**text, "time": next(times)}
)

# %% claim: With the checksum, not one
# null: the checksum is not compared
with_checksum = alone

# null: the library refuses as much
alone = Counter({"refused": len(met)})

# null: no bit of a number is accepted by the library
met = [*met[: -12 * 8], *[("refused", "refused")] * 12 * 8]

# %% claim: Each of these files
# null: every file is accepted
complaints = dict.fromkeys(complaints, "accepted")

# null: the foreign part is not seen
complaints["a foreign part"] = "accepted"

# null: every file is refused
complaint = lambda content: "refused"

# %% claim: An optimizer taken up
# null: the optimizer's state is not taken up
torch.optim.Adam.load_state_dict = lambda self, state: None

# null: the state makes no difference: plain gradient descent
torch.optim.Adam = lambda weights, lr: torch.optim.SGD(weights, lr)

# %% claim: A forged state is refused
# null: read with pickle
load = torch.load
torch.load = lambda file, **options: load(file, **{**options, "weights_only": False})

# null: every state is refused
# raises: ValueError


def read_training_state(path):
    raise ValueError("not a training state: refused")


# %% claim: A GELU in the place
# null: only names are compared
foreign_parts = lambda model: {}

# null: the part has other weights
calls = iter("12")
Transformer.state_dict = lambda self: {next(calls): None}
