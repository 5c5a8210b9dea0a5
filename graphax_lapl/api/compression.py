"""What `order=` may say about compressed evaluation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..coloring import Pattern
from ..errors import InvalidArgumentError, InvalidTypeError
from ..graph.tracing import check_flags

__all__ = ["COMPRESSED_ORDERS", "Compressed"]

MODES = ("best", "forward", "reverse", "both", "symmetric")


@dataclass(frozen=True, eq=False)
class Compressed:
    """Evaluate a compressed Jacobian by colouring, instead of eliminating vertices.

    Columns without a common row share one Jacobian-vector product, rows without a common column
    one vector-Jacobian product; the entries are read off the products. Pass it as `order=`.

    Attributes:
        mode: "forward" (columns), "reverse" (rows), "both" (some rows and some columns, for a few
            full rows and columns), "symmetric" (the Jacobian is symmetric, that of a gradient: star
            colouring), or "best" of the first three.
        pattern: where the Jacobian may be nonzero, if you know better than the structure of the
            operations says (which takes large loops for dense): a matrix whose nonzeros are meant
            (numpy, `jax.experimental.sparse.BCOO`, anything with `tocoo`), or a `Pattern`. Rows
            run over the raveled outputs, columns over the raveled differentiated inputs.
        check: whether one more product, with a fixed vector in general position, is compared with
            the entries; where they differ by more than the square root of the precision all entries
            are NaN. By default where a pattern is given or symmetry is claimed.

    Raises:
        InvalidArgumentError: for an unknown mode.
        InvalidTypeError: for a pattern that is none of these, or a `check` that is no flag.
    """

    mode: str = "best"
    pattern: Any = None
    check: bool | None = None

    def __post_init__(self) -> None:
        """Check the mode and bring the pattern into one form."""
        if self.mode not in MODES:
            raise InvalidArgumentError(
                f"mode must be one of {', '.join(map(repr, MODES))}, got {self.mode!r}."
            )
        if self.check is not None:
            check_flags(check=self.check)
        if self.pattern is not None:
            object.__setattr__(self, "pattern", _pattern(self.pattern))
        if self.check is None:
            checked = self.pattern is not None or self.mode == "symmetric"
            object.__setattr__(self, "check", checked)

    @property
    def name(self) -> str:
        """The order's name in tables."""
        return "compressed" if self.mode == "best" else f"compressed_{self.mode}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        pattern = self.pattern
        return {
            "mode": self.mode,
            "check": self.check,
            "pattern": pattern
            and {
                "rows": pattern.rows.tolist(),
                "cols": pattern.cols.tolist(),
                "shape": list(pattern.shape),
            },
        }

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Compressed:
        """Rebuild from `to_dict`."""
        pattern = content["pattern"]
        if pattern is not None:
            rows, cols = (np.array(pattern[name], np.int64) for name in ("rows", "cols"))
            pattern = Pattern.of(rows, cols, tuple(pattern["shape"]))
        return Compressed(content["mode"], pattern, content["check"])

    @property
    def _key(self) -> tuple[Any, ...]:
        digest = None
        if self.pattern is not None:
            content = self.pattern.rows.tobytes() + self.pattern.cols.tobytes()
            digest = (self.pattern.shape, hashlib.blake2b(content, digest_size=16).digest())
        return (self.mode, self.check, digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compressed) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


#: Names that `order=` takes.
COMPRESSED_ORDERS = {Compressed(mode).name: Compressed(mode) for mode in MODES}


def _pattern(given: Any) -> Pattern:
    if isinstance(given, Pattern):
        return given
    if hasattr(given, "tocoo"):
        entries = given.tocoo()
        return Pattern.of(entries.row, entries.col, entries.shape)
    if hasattr(given, "indices") and hasattr(given, "n_batch"):
        indices = np.asarray(given.indices)
        if given.n_batch or given.n_dense or indices.shape[-1] != 2:
            raise InvalidTypeError("pattern: a BCOO must have two sparse dimensions and no others.")
        valid = (indices < np.array(given.shape)).all(
            axis=1
        )  # padding stands outside of the matrix
        return Pattern.of(indices[valid, 0], indices[valid, 1], given.shape)
    if hasattr(given, "__array__") or isinstance(given, list | tuple):
        return Pattern.of_mask(given)
    raise InvalidTypeError(
        "pattern must be a matrix (numpy, BCOO, scipy.sparse) or a Pattern, got "
        f"{type(given).__name__}."
    )
