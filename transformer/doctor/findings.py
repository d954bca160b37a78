"""What an examination found, and how it is told.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

from dataclasses import dataclass, field
from typing import Literal

from transformer.doctor.causes import CAUSES

__all__ = ["Finding", "Report"]


@dataclass(frozen=True)
class Finding:
    """One fault, named: what it is, what proves it, and where it sits."""

    cause: str  # a stable word, a key of CAUSES
    sentence: str
    evidence: str
    where: str | None
    chapter: str  # the page that explains it, "08-masks"
    level: Literal["bug", "look"]


def finding(
    cause: str,
    evidence: str,
    where: str | None = None,
    level: Literal["bug", "look"] | None = None,
    **words: object,
) -> Finding:
    """The finding of a documented cause; `words` fill the gaps of its sentence."""
    known = CAUSES[cause]
    sentence = known.sentence.format(**words)
    return Finding(
        cause, sentence, evidence, where, known.chapter, level or known.level
    )


@dataclass
class Report:
    """The result of an examination; printed, it fits on one screen."""

    subject: str
    findings: list[Finding] = field(default_factory=list)  # the likeliest first
    proved: dict[str, str] = field(default_factory=dict)  # check: what holds
    untested: dict[str, str] = field(default_factory=dict)  # check: why not
    failed: dict[str, str] = field(default_factory=dict)  # check: the cause found
    seconds: float = 0.0

    @property
    def verdict(self) -> Literal["sound", "bug", "not examined"]:
        """Whether a bug was proved, or none, or nothing could be run."""
        if any(found.level == "bug" for found in self.findings):
            return "bug"
        return "sound" if self.proved else "not examined"

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 1 for a bug, 2 if nothing could be examined."""
        return {"sound": 0, "bug": 1, "not examined": 2}[self.verdict]

    def to_json(self) -> dict[str, object]:
        """The report as plain dictionaries and lists."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "findings": [vars(found) for found in self.findings],
            "proved": self.proved,
            "not tested": self.untested,
            "seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        lines = [f"{self.subject}: {self.verdict} ({self.seconds:.0f} s)"]
        for found in self.findings:
            mark = "✗" if found.level == "bug" else "?"
            lines += ["", f"{mark} {found.sentence}  [{found.cause}]"]
            lines.append(f"    seen: {found.evidence}")
            if found.where:
                lines.append(f"    where: {found.where}")
            lines.append(f"    read: book/{found.chapter}")
        if self.proved:
            lines += ["", "proved:"]
            lines += [f"  ✓ {said}" for said in self.proved.values()]
        if self.untested:
            reasons = [f"{check} ({why})" for check, why in self.untested.items()]
            lines += ["", "not tested: " + "; ".join(reasons)]
        return "\n".join(lines)
