"""A pytest plugin: one test for each check of an examination.

    pytest -p transformer.cli.pytest_doctor --doctor student.py:Transformer

`--doctor-adapter mine.py` says how to build and call the model, where names do not.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["DoctorItem", "pytest_addoption", "pytest_collection_modifyitems"]


class DoctorItem(pytest.Item):
    """One check: passed if it was proved, skipped if it could not be asked."""

    def __init__(self, *, check: str, reports: dict[str, Any], **rest: Any) -> None:
        super().__init__(**rest)
        self.check, self.reports = check, reports

    def runtest(self) -> None:
        """Examine once, for all checks; then look up what this one found."""
        target = self.config.getoption("--doctor")
        if target not in self.reports:
            from transformer.doctor.student import examine_file

            adapter = self.config.getoption("--doctor-adapter")
            self.reports[target] = examine_file(target, adapter and Path(adapter))[0]
        report = self.reports[target]
        if self.check in report.failed:
            found = [f for f in report.findings if f.cause == report.failed[self.check]]
            pytest.fail(f"{found[0].sentence} ({found[0].evidence})", pytrace=False)
        if self.check not in report.proved:
            pytest.skip(report.untested.get(self.check, "explained by another finding"))

    def reportinfo(self) -> tuple[Path, None, str]:
        """What pytest prints as the place of the test."""
        return self.path, None, f"doctor: {self.check}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options `--doctor` and `--doctor-adapter`."""
    group = parser.getgroup("doctor")
    group.addoption("--doctor", metavar="FILE:CLASS", help="examine this Transformer")
    group.addoption("--doctor-adapter", metavar="FILE", help="how to build and call it")


def doctor_items(session: pytest.Session) -> Iterator[DoctorItem]:
    """One item for each check."""
    from transformer.doctor import CHECKS

    reports: dict[str, Any] = {}
    for check in CHECKS:
        yield DoctorItem.from_parent(
            session, name=f"doctor::{check}", check=check, reports=reports
        )


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the checks to the tests that were collected."""
    if config.getoption("--doctor"):
        items.extend(doctor_items(session))
