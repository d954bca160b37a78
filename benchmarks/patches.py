"""Does longer training help the classifier of chapter 18? Digits read as patches.

    python benchmarks/patches.py

The chapter's classifier is trained on the first 1,000 digits of scikit-learn, for 300,
1,000 and 3,000 steps, on the images as they are and with each image of a batch moved by
up to a pixel, three seeds each; the other 797 are the test. Nothing is chosen by it.
"""

import time

import torch
from race import RESULTS, keep
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from transformer.beyond.patch_classifier import PatchClassifier

SIZES = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 2, "dropout": 0.1}
RATE, BATCH, TRAIN, SEEDS = 3e-3, 64, 1000, (0, 1, 2)


def moved(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to a pixel in both directions, the rest white."""
    padded = F.pad(images, (1, 1, 1, 1))
    starts = torch.randint(3, (2, len(images), 1), generator=generator)
    rows, columns = starts + torch.arange(images.size(-1))
    each = torch.arange(len(images))[:, None, None]
    return padded[each, rows[:, :, None], columns[:, None, :]]


def trained(
    images: Tensor, labels: Tensor, steps: int, seed: int, move: bool
) -> PatchClassifier:
    """The chapter's training, and with `move` each batch moved."""
    torch.manual_seed(seed)
    model = PatchClassifier(8, 2, 10, **SIZES)
    generator = torch.Generator().manual_seed(seed)
    adam = torch.optim.Adam(model.parameters(), fused=True)
    for step in range(1, steps + 1):
        rows = torch.randint(len(images), (BATCH,), generator=generator)
        batch = moved(images[rows], generator) if move else images[rows]
        share = min(1, step / 50, 2 * (1 - step / (steps + 1)))
        adam.param_groups[0]["lr"] = RATE * share
        adam.zero_grad()
        F.cross_entropy(model(batch), labels[rows]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
    return model.eval()


def main() -> None:
    """Train all, and write the file anew after each."""
    torch.set_num_threads(1)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    runs: list[dict[str, float]] = []
    made = {"rate": RATE, "batch": BATCH, "trained_on": TRAIN, **SIZES}
    for steps in (300, 1000, 3000):
        for move in (False, True):
            for seed in SEEDS:
                started = time.process_time()
                model = trained(images[:TRAIN], labels[:TRAIN], steps, seed, move)
                with torch.no_grad():
                    guesses = model(images[TRAIN:]).argmax(dim=-1)
                right = (guesses == labels[TRAIN:]).float().mean().item()
                runs.append(
                    {
                        "steps": steps,
                        "moved": move,
                        "seed": seed,
                        "right": round(right, 4),
                    }
                )
                keep(RESULTS / "patches.json", {"made": made, "runs": runs})
                seconds = time.process_time() - started
                print(f"{runs[-1]}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
