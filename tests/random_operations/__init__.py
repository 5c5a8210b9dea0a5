"""Operation families of the random program generator, one file per family.

To extend the generator, write a new file with an ``operation = OperationTable()`` and add its table
to ``FAMILIES``. Seeds that draw from it then name other programs; nothing else changes.
"""

from tests.random_operations import (
    compositions,
    contractions,
    control_flow,
    data_indexing,
    elementwise,
    indexing,
    linear_algebra,
    reductions,
    shaping,
    sharing,
    transforms,
    windows,
)
from tests.random_operations.builder import NotApplicable, Operation, ProgramBuilder, Value

FAMILIES = {
    "elementwise": elementwise.operation,
    "reductions": reductions.operation,
    "contractions": contractions.operation,
    "shaping": shaping.operation,
    "indexing": indexing.operation,
    "windows": windows.operation,
    "compositions": compositions.operation,
    "control flow": control_flow.operation,
    "linear algebra": linear_algebra.operation,
    "data indexing": data_indexing.operation,
    "transforms": transforms.operation,
    "sharing": sharing.operation,
}

GENERAL = tuple(name for name in FAMILIES if name != "sharing")
"""What is drawn from where nothing else is asked for: seeds keep the programs they have named."""

__all__ = ["FAMILIES", "GENERAL", "NotApplicable", "Operation", "ProgramBuilder", "Value"]
