"""The break-it lab: training curves of a model and of models without one part."""

import hashlib
import html
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

_PAGE = Template(Path(__file__).with_name("break_lab.html").read_text(encoding="utf-8"))
_LEFT, _TOP, _RIGHT, _BOTTOM = 46, 10, 590, 246


@dataclass(frozen=True)
class Runs:
    """The same training from several seeds: a loss curve each, and how it ended.

    `exact` and `teacher_forced` are shares of held-out sentences: translated exactly
    from the model's own words, and with each next word right after the right ones.
    """

    losses: Sequence[Sequence[float]]
    exact: Sequence[float]
    teacher_forced: Sequence[float]

    @classmethod
    def stored(cls, variant: Mapping[str, Any]) -> "Runs":
        """One variant of benchmarks/results/ablations.json."""
        runs = variant["runs"].values()
        return cls(
            [run["loss"] for run in runs],
            [run["exact"] for run in runs],
            [run["exact_teacher_forced"] for run in runs],
        )


@dataclass(frozen=True)
class Part:
    """A part that can be switched off, and the property that the model then lacks.

    `fails` may hold HTML, such as a link to the chapter.
    """

    name: str
    runs: Runs
    seen: str
    fails: str


class BreakLab:
    """Loss curves of the whole model and of models that each lack one part.

    The reader chooses with switches: mouse, touch, or tab and arrow keys. There is no
    script in it; where styles are not understood either, everything is shown at once.

    Raises:
        ValueError: for no parts, or curves of different lengths.
    """

    def __init__(
        self,
        whole: Runs,
        parts: Sequence[Part],
        step: int,
        floor: float,
        title: str = "The break-it lab",
        first: str = "",
    ) -> None:
        lengths = {
            len(curve)
            for runs in (whole, *(part.runs for part in parts))
            for curve in runs.losses
        }
        if not parts or len(lengths) != 1:
            raise ValueError(
                "the lab needs parts, and curves of one length, got "
                f"{len(parts)} parts and lengths {sorted(lengths)}"
            )
        self.whole, self.parts, self.title = whole, list(parts), title
        self.first = first  # the part that is off at first, if any
        self.step, self.floor, self.points = step, floor, lengths.pop()
        everything = (whole, *(part.runs for part in parts))
        self.high = 0.3 + max(max(map(max, runs.losses)) for runs in everything)

    def __repr__(self) -> str:
        names = ", ".join(part.name for part in self.parts)
        return f"BreakLab({names}; {len(self.whole.losses)} runs of each)"

    def _repr_html_(self) -> str:
        names = ", ".join(part.name for part in self.parts)
        key = hashlib.sha256(repr((self.whole, self.parts)).encode()).hexdigest()[:10]
        about = (
            f"Loss against step, {self.points * self.step} steps. The whole model "
            f"falls from {self.whole.losses[0][0]:.1f} to {self._end(self.whole):.2f}. "
            + " ".join(
                f"Without {part.name} it ends at {self._end(part.runs):.2f}."
                for part in self.parts
            )
        )
        radio = f'<input type="radio" name="lab-{key}" id="lab-{key}-'
        switches = [
            f'{radio}all" class="lab-all"{"" if self.first else " checked"}>'
            f'<label for="lab-{key}-all">all on</label>'
        ]
        panels = [
            f'<div class="lab-panel lab-p-all"><p>Everything is on. Switch a part off, '
            f"and see what the loss shows and what it hides: {html.escape(names)}.</p>"
            f"{self._table([('whole model', self.whole)])}</div>"
        ]
        curves, shown = [self._curve(self.whole, "lab-whole", "whole")], ["all"]
        for number, part in enumerate(self.parts):
            name = html.escape(part.name)
            shown.append(str(number))
            switches.append(
                f'{radio}{number}" class="lab-{number}"'
                f"{' checked' if part.name == self.first else ''}>"
                f'<label for="lab-{key}-{number}">{name}</label>'
            )
            curves.append(
                self._curve(part.runs, f"lab-curve lab-c-{number}", f"without {name}")
            )
            rows = [("whole model", self.whole), (f"without {name}", part.runs)]
            panels.append(
                f'<div class="lab-panel lab-p-{number}">{self._table(rows)}'
                f"<p>{html.escape(part.seen)}</p>"
                f"<p><strong>What fails:</strong> {part.fails}</p></div>"
            )
        rules = ",\n".join(
            f".breaklab:has(.lab-{which}:checked) .lab-{kind}-{which}"
            for which in shown
            for kind in ("c", "p")
        )
        return _PAGE.substitute(
            key=key,
            title=html.escape(self.title),
            label=html.escape(about),
            switches="\n".join(switches),
            axes=self._axes(),
            curves="\n".join(curves),
            panels="\n".join(panels),
            shown=rules,
        )

    def _end(self, runs: Runs) -> float:
        return statistics.fmean(curve[-1] for curve in runs.losses)

    def _at(self, point: float, loss: float) -> str:
        x = _LEFT + (_RIGHT - _LEFT) * point / (self.points - 1)
        y = _BOTTOM - (_BOTTOM - _TOP) * min(loss, self.high) / self.high
        return f"{x:.1f},{y:.1f}"

    def _curve(self, runs: Runs, kind: str, label: str) -> str:
        """The mean of the runs as a line, all of them as a band, and a name."""
        steps = list(zip(*runs.losses, strict=True))
        high = [self._at(i, max(losses)) for i, losses in enumerate(steps)]
        low = [self._at(i, min(losses)) for i, losses in enumerate(steps)]
        mean = [self._at(i, statistics.fmean(losses)) for i, losses in enumerate(steps)]
        row = 0 if kind == "lab-whole" else 1
        return (
            f'<g class="{kind}"><polygon points="{" ".join(high + low[::-1])}"/>'
            f'<path d="M{" L".join(mean)}"/>'
            f'<text x="{_RIGHT}" y="{_TOP + 16 + 22 * row}" text-anchor="end">'
            f"{label}</text></g>"
        )

    def _axes(self) -> str:
        last = self.points * self.step
        ticks = [
            f'<text x="{_LEFT - 8}" y="{float(self._at(0, y).split(",")[1]) + 5:.1f}" '
            f'text-anchor="end">{y}</text>'
            for y in range(0, int(self.high) + 1)
        ]
        for step in range(0, last + 1, 100):
            x = self._at(step / self.step * (self.points - 1) / self.points, 0)
            ticks.append(
                f'<text x="{x.split(",")[0]}" y="{_BOTTOM + 20}" '
                f'text-anchor="middle">{step}</text>'
            )
        rest = self._at(0, self.floor).split(",")[1]
        return (
            f'<path class="lab-axis" d="M{_LEFT},{_TOP} V{_BOTTOM} H{_RIGHT}"/>'
            f'<path class="lab-floor" d="M{_LEFT},{rest} H{_RIGHT}"/>'
            f'{"".join(ticks)}<text x="{_RIGHT}" y="{_BOTTOM + 40}" '
            f'text-anchor="end">step; loss in nats; dotted: the floor</text>'
        )

    def _table(self, rows: Sequence[tuple[str, Runs]]) -> str:
        head = "<th>model</th><th>last loss</th><th>exact</th><th>teacher-forced</th>"
        body = "".join(
            f'<tr><th scope="row">{name}</th><td>{self._end(runs):.2f}</td>'
            f"<td>{span(runs.exact)}</td><td>{span(runs.teacher_forced)}</td></tr>"
            for name, runs in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def span(shares: Sequence[float]) -> str:
    """From the least share to the largest, in percent."""
    low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
    return f"{low}%" if low == high else f"{low}–{high}%"
