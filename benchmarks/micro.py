"""Chapter 21's program, trained whole: its losses, seconds, held-out dates and weights.

    python benchmarks/micro.py

It makes what `python transformer/micro.py` makes, in a few minutes on one core, and
keeps it in benchmarks/results/micro.json. The weights are rounded to four decimals, and
the held-out dates are written with the rounded ones: who reads them from the file
finds the same.
"""

import random
import time

from race import RESULTS, keep, made_here

from transformer import micro


def run() -> dict[str, object]:
    """What `main` does before it asks for a line."""
    draw = random.Random(0)
    held_out = [micro.date(draw) for _ in range(200)]
    model = micro.new_model(draw)
    losses, started = [], (time.process_time(), time.perf_counter())
    for step, loss in enumerate(micro.train(model, draw, held_out), 1):
        losses.append(loss)
        if step % 25 == 0:
            print(f"step {step}: loss {loss:.2f}", flush=True)
    cpu = time.process_time() - started[0]
    wall = time.perf_counter() - started[1]
    for value in model.values():
        value.rows = [[round(x, 4) for x in row] for row in value.rows]
    wrong = [
        (text, iso, written)
        for text, iso in held_out
        if (written := micro.translate(model, text)) != iso
    ]
    return {
        "cpu_seconds": round(cpu, 1),
        "seconds": round(wall, 1),
        "losses": [round(loss, 6) for loss in losses],
        "held_out": len(held_out),
        "right": len(held_out) - len(wrong),
        "wrong": wrong,
        "weights": {name: value.rows for name, value in model.items()},
    }


if __name__ == "__main__":
    found = run()
    keep(RESULTS / "micro.json", made_here() | found)
    print(f"{found['right']} of {found['held_out']}, {found['cpu_seconds']} s of CPU")
