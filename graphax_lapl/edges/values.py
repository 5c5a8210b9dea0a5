"""Small immutable values, which planning makes by the thousand.

A frozen dataclass guards every assignment, those of its own `__init__` included, which takes longer
than all else about making one; it computes its hash at every look-up; and half a dozen methods are
generated and compiled for each class when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Generic, TypeVar, dataclass_transform, overload

__all__ = ["immutable", "lazy", "record"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False)
def record(cls: type[T]) -> type[T]:
    """A dataclass that is never changed, compared by identity.

    Nothing but the type checker refuses an assignment.
    """
    made = dataclass(eq=False, repr=False)(cls)
    if "__repr__" not in cls.__dict__:
        shown = [field.name for field in fields(made) if field.repr]  # type: ignore[arg-type]

        def __repr__(self: Any) -> str:
            listed = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
            return f"{type(self).__qualname__}({listed})"

        made.__repr__ = __repr__  # type: ignore[method-assign]
    return made


@dataclass_transform(frozen_default=True)
def immutable(cls: type[T]) -> type[T]:
    """A dataclass that is never changed, compared by its fields; its hash is computed once."""
    made: Any = record(cls)
    names = [field.name for field in fields(made) if field.compare]
    content = attrgetter(*names) if names else type

    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(content(self) == content(other))

    def __hash__(self: Any) -> int:
        known: int | None = self._hash
        if known is None:
            known = self._hash = hash(content(self))
        return known

    made.__eq__, made.__hash__, made._hash = __eq__, __hash__, None
    return made


class lazy(Generic[T]):
    """A property that is computed when it is first read; threads may compute it twice.

    `functools.cached_property` takes a lock before Python 3.12.
    """

    def __init__(self, compute: Callable[[Any], T]):
        """Wrap the method that computes it."""
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        found = self.compute(instance)
        setattr(instance, self.name, found)  # `__dict__` would make a dictionary of its own
        return found
