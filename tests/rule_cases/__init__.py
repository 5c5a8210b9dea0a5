"""The table of the rule battery: primitive -> form -> case, one file per family."""

from tests.rule_cases import contractions, elementwise, fallback, shaping
from tests.rule_cases.case import Case, Table

CASES: Table = elementwise.CASES | shaping.CASES | contractions.CASES | fallback.CASES

__all__ = ["CASES", "Case", "Table"]
