"""Is *your* Transformer right? `examine` proves bugs from outside and names causes."""

from transformer.doctor.causes import CAUSES
from transformer.doctor.examine import examine
from transformer.doctor.findings import Finding, Report

__all__ = ["CAUSES", "Finding", "Report", "examine"]
