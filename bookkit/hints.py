"""What an exception of the reader's code says, and what often lies behind it."""

from typing import Any

from torch import Tensor, nn

# Those about sizes; the rest may help at a later example, too.
_SIZES = {
    "shapes cannot be multiplied": "The inner sizes of a matrix product differ: does "
    "one of the two want transposing, or do they stand in the wrong order?",
    "Expected size for first two dimensions": "The inner sizes of a matrix product "
    "differ: does one of the two want transposing?",
    "size mismatch, got": "The sizes of a product differ: does the matrix want "
    "transposing, or do the two stand in the wrong order?",
    "inconsistent tensor size": "Two vectors of different lengths have no dot product.",
    "must match the size of tensor": "Two shapes do not fit side by side: is an axis "
    "of size 1 missing, as keepdim=True keeps it?",
}
_HINTS = {
    "The shape of the mask": "Indexing needs a mask of the tensor's own shape: "
    "masked_fill and where broadcast it.",
    "have the same dtype": "Two tensors hold numbers of different precision.",
    "one element tensors can be converted": "`math` works on one number: torch.tanh, "
    "torch.exp and the like work on whole tensors.",
    "unsupported operand type(s) for @": "Both sides of @ must be tensors: begin with "
    "one, such as torch.zeros(3).",
    "more than one value is ambiguous": "`and`, `or` and `not` need a single truth "
    "value: `&`, `|` and `~` work entry by entry.",
    "must be Tensor, not NoneType": "Something is None there: does a function inside "
    "yours lack its `return`?",
    "must be Tensor, not": "It takes a tensor, which torch.tensor(…) makes.",
    "math domain error": "`math.log` takes only numbers above 0, and `math.sqrt` none "
    "below 0.",
    "bitwise_and": "`&` needs booleans on both sides: dtype=torch.bool makes them.",
    "a leaf Variable that requires grad": "Write into a parameter inside `with "
    "torch.no_grad():`, so that autograd does not follow.",
    "does not require grad": "Call requires_grad_() on the tensor whose gradient you "
    "want, before you compute with it.",
    "mean(): could not infer": "Booleans and whole numbers have no mean here: "
    ".double() makes decimals of them.",
    "expected sequence of length": "The rows of a tensor are equally long: fill up the "
    "shorter ones first.",
    "list index out of range": "The list ends before: does the index count one too "
    "far? Where a loop deletes from the list it counts through, use `while`.",
}


def raised(error: Exception, example: str = "") -> str:
    """An exception of the reader's code in a line, and what often lies behind it.

    `example` says which one raised it, where others before it did not.
    """
    text, hints, hint = str(error), _SIZES | _HINTS, ""
    if example:
        hints = _HINTS
    if example and isinstance(error, RuntimeError | IndexError | ValueError):
        hint = "Is a size or a number of the first example written in?"
    hint = next((hints[words] for words in hints if words in text), hint)
    message = f"your code raised {type(error).__name__}{text and f': {text}'}"
    if example:
        message = f"It runs on the first example, but for {example} {message}"
    return f"{message.rstrip('.')}. {hint}" if hint else message


def described(value: Any) -> str:
    """The size of an argument, or what it is; empty where that says nothing."""
    if isinstance(value, Tensor) and not value.is_floating_point() and value.dim():
        value = value.tolist() if value.numel() < 9 else value
    if isinstance(value, Tensor):
        return f" of shape {tuple(value.shape)}"
    if isinstance(value, nn.Linear):
        return f" = {value}"
    if isinstance(value, list | tuple):
        return f" = {value}" if len(str(value)) < 60 else f" of length {len(value)}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f" = {value}" if number else ""
