"""Checks for the exercises of chapter 12, How does it learn?"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bookkit.exercises import Verdict, exercise, right, unanswered, wrong


@exercise
def check_smoothed(smoothed: Callable[[Tensor, int, float], Any]) -> Verdict:
    """Exercise: the smoothed loss of one word."""
    logits, target, epsilon = torch.tensor([1.5, -0.5, 0.25, 2.0, -1.0]), 2, 0.2
    surprise = -logits.log_softmax(dim=-1)
    others = (surprise.sum() - surprise[target]) / (len(logits) - 1)
    wanted = (1 - epsilon) * surprise[target] + epsilon * surprise.mean()
    answer = float(smoothed(logits, target, epsilon))
    known = {
        float(surprise[target]): "That is the plain loss: epsilon has no effect.",
        float((1 - epsilon) * surprise[target] + epsilon * others): (
            "You shared epsilon among the wrong words only. It goes to all of them, "
            "the right one included."
        ),
        float((1 - epsilon) * surprise[target] + epsilon * surprise.sum()): (
            "You gave each word epsilon. They share it: take the mean, not the sum."
        ),
        float(wanted) / math.log(2): (
            "Your loss is in bits. Use the natural logarithm, for nats."
        ),
        -float(wanted): "The sign is wrong: a surprise is *minus* the log-probability.",
        float((1 - epsilon) * surprise[target]): (
            "The second part is missing: epsilon times the mean surprise of all words."
        ),
        float((1 - epsilon) * -logits[target] - epsilon * logits.mean()): (
            "You used the logits as they are. They need a log-softmax first."
        ),
        float(epsilon * surprise[target] + (1 - epsilon) * surprise.mean()): (
            "epsilon and 1 - epsilon are swapped: the right word keeps most."
        ),
    }
    if math.isclose(answer, float(wanted), rel_tol=1e-5):
        plain = float(smoothed(logits, 0, 0.0))
        if not math.isclose(plain, float(surprise[0]), rel_tol=1e-5):
            return wrong("With epsilon = 0 it should be the plain loss of the target.")
        return right("Most for the right word, a little for every word.")
    for value, message in known.items():
        if math.isclose(answer, value, rel_tol=1e-4):
            return wrong(message)
    return wrong(
        f"For the logits {logits.tolist()}, target {target} and epsilon {epsilon}, the "
        f"loss is {wanted:.3f}; got {answer:.3f}."
    )


@exercise
def check_clip(clip: Callable[[list[Tensor], float], Any]) -> Verdict:
    """Exercise: clip gradients by their common length."""
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [-4.0]])]
    kept = [gradient.clone() for gradient in gradients]
    answer = clip(gradients, 1.0)
    if not all(map(torch.equal, gradients, kept)):
        return wrong("You changed the gradients in place; return new ones.")
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        return wrong("A list with one tensor for each gradient is wanted.")
    if any(one.shape != other.shape for one, other in zip(answer, kept, strict=True)):
        return wrong("Each gradient should keep its shape.")
    flat = torch.cat([torch.as_tensor(part).flatten() for part in answer]).tolist()
    short = clip([torch.tensor([0.3]), torch.tensor([0.4])], 1.0)
    short = torch.cat([part.flatten() for part in short])

    def close(*values: float) -> bool:
        return all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(flat, values))  # noqa: B905

    if close(0.6, 0, 0, -0.8):
        if torch.allclose(short, torch.tensor([0.6, 0.8])):
            return wrong(
                "You lengthened a gradient that was short. Clipping only shortens."
            )
        if not torch.allclose(short, torch.tensor([0.3, 0.4])):
            return wrong(f"The short gradient (0.3, 0.4) became {short.tolist()}.")
        return right("One length for all, one factor for all.")
    if close(1, 0, 0, -1):
        return wrong(
            "Each gradient, or each number, was cut on its own. That changes the "
            "direction: (3, 4) became (1, 1). Take one length of all together."
        )
    if close(3, 0, 0, -4):
        return wrong("Nothing was shortened: together they are 5 long, and may be 1.")
    if close(3 / 25, 0, 0, -4 / 25):
        return wrong("You divided by the square of the length: take its root.")
    if close(3 / 7, 0, 0, -4 / 7):
        return wrong("You added up absolute values. The length is the root of squares.")
    if close(3 / 4, 0, 0, -1):
        return wrong("You divided by the largest number, not by the length.")
    return wrong(f"(3, 0) and (0, -4) should become 0.6 and -0.8, got {flat}.")


@exercise
def check_keep(keep: Any) -> Verdict:
    """Exercise: what a file needs so that a run goes on exactly."""
    needed = {
        "weights": "Without the weights, the run begins again.",
        "means of gradients": (
            "Adam's m is missing: its first steps would forget where it was heading."
        ),
        "means of squares": (
            "Adam's v is missing: every weight would lose the step size of its own."
        ),
        "step": (
            "The step is missing: the learning rate, the next batch and Adam's "
            "correction all follow from it."
        ),
        "random state": (
            "The random state is missing: dropout would draw other numbers than the "
            "run that never stopped."
        ),
    }
    spare = {
        "gradients": "Gradients are set to zero at the start of each step.",
        "learning rate": "The learning rate follows from the recipe and the step.",
        "order of the batches": "The order follows from the seed, which is known.",
        "last loss": "The loss is for us to look at; no step is computed from it.",
    }
    answer = set(keep)
    strange = sorted(answer - needed.keys() - spare.keys())
    if strange:
        return wrong(f"{strange[0]!r} is not one of the nine.")
    for name, message in needed.items():
        if name not in answer:
            return wrong(message)
    for name, message in spare.items():
        if name in answer:
            return wrong(f"{message} It need not be in the file.")
    return right("Everything with a past that nothing else remembers, and no more.")


@exercise
def check_patients(missing: Any) -> Verdict:
    """Exercise: from the symptom to the part that is missing."""
    if any(part is ... or part is None for part in missing.values()):
        return unanswered()
    hints = {
        "A": ("causal mask", "what if the answer stood in its input?"),
        "B": ("warm-up", "look at the size of the first step."),
        "C": ("positions", "what tells the encoder which word came first?"),
        "D": ("residuals", "what carries a word's own vector past the averaging?"),
    }
    for patient, (part, hint) in hints.items():
        said = str(missing.get(patient, "")).strip().lower().replace("-", " ")
        if said != part.replace("-", " "):
            return wrong(f"{patient} lacks something else than {said!r}: {hint}")
    return right("Each symptom names its part; no loss curve was needed for C and D.")
