"""Plain text: training on its windows, and the loss by how much context is seen.

Made from book/17-language-model.md: edit the chapter, not this file.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.checks import require_not_empty, require_positive
from transformer.decoding.step import evaluating
from transformer.training.loop import paper_adam, training_mode

__all__ = [
    "train_on_text",
    "context_losses",
]


def train_on_text(
    model: nn.Module,
    ids: Int[Tensor, " length"],
    steps: int,
    batch_size: int = 16,
    window: int = 64,
    learning_rate: float = 4e-3,
    seed: int = 0,
) -> Iterator[float]:
    """Train a language model in place, and yield the loss of each step in nats a token.

    `model` is any that turns ids into logits. Each step reads `batch_size` windows from
    random places of the text. The learning rate rises over 100 steps and falls nearly
    to zero over the last half.

    Raises:
        ValueError: at the first step, for a number below 1, a `learning_rate` that is
            not above 0, or a text without room for a window and the token after it.
    """
    require_positive(steps=steps, batch_size=batch_size, window=window)
    if not learning_rate > 0:
        raise ValueError(f"learning_rate must be above 0, got {learning_rate}")
    if ids.dim() != 1 or len(ids) < window + 1:
        raise ValueError(
            f"a text must be one row of at least {window + 1} ids, "
            f"got shape {tuple(ids.shape)}"
        )
    generator = torch.Generator().manual_seed(seed)
    optimizer = paper_adam(model)
    offsets = torch.arange(window + 1)
    for step in range(1, steps + 1):
        share = min(1.0, step / 100, 2 * (steps - step + 1) / steps)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * share
        starts = torch.randint(len(ids) - window, (batch_size, 1), generator=generator)
        windows = ids[(starts + offsets).to(ids.device)]  # (batch, window + 1)
        with training_mode(model):
            logits = model(windows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        yield loss.item()


def context_losses(
    model: nn.Module,
    ids: Int[Tensor, " length"],
    targets: Int[Tensor, " targets"],
    context: int,
    batch_size: int = 256,
) -> Float[Tensor, " targets"]:
    """The loss of each target, in nats, for a model that sees `context` ids before it.

    `targets` are places in the text.

    Raises:
        ValueError: for a context below 1, or a target with fewer ids before it.
    """
    require_positive(context=context, batch_size=batch_size)
    require_not_empty("target", targets)
    if int(targets.min()) < context or int(targets.max()) >= len(ids):
        raise ValueError(
            f"targets must lie in {context}..{len(ids) - 1}, "
            f"got {int(targets.min())}..{int(targets.max())}"
        )
    before = targets[:, None] + torch.arange(-context, 0, device=targets.device)
    with evaluating(model):
        losses = [
            F.cross_entropy(model(ids[places])[:, -1], ids[target], reduction="none")
            for places, target in zip(
                before.split(batch_size), targets.split(batch_size), strict=True
            )
        ]
    return torch.cat(losses).clone()  # no longer an inference tensor
