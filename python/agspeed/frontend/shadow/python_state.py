# SPDX-License-Identifier: Apache-2.0
"""Copies and restores the Python state that a module's forward may change: its attributes and all objects behind them.

It follows submodules, lists, tuples, dicts, sets, deques, NumPy arrays, objects of the user's own classes, and the
attributes of these classes. It does not follow objects that hold threads, locks or queues, because other threads may
change them meanwhile. Each followed object has a shallow copy. So both replaced objects and changed contents can be
restored.
"""

from __future__ import annotations

import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from agspeed.errors import UnsupportedError
from agspeed.regions.user_lines import is_users
from agspeed.torch_compat.modules import SLOT

_MOST_OBJECTS = 50_000
_ABSENT = object()
_SEQUENCES = (list, deque, bytearray)
_CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    classmethod,
    staticmethod,
    property,
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONCURRENT = ("_queue", "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "threading")
_OF_MODULES = ("_buffers", "_modules", "_parameters")


class PythonState:
    """A copy of all Python state that can be reached from a module, the arguments of its call and `others`, and of
    Python's and NumPy's default generators.

    Raises: UnsupportedError if too many objects can be reached.
    """

    def __init__(self, module: nn.Module, args: Any, kwargs: Any, others: Iterable[object] = ()) -> None:
        self._held: dict[int, tuple[str, Any, Any]] = {}
        """{id of an object: (where it was found, the object, a shallow copy of its content)}."""
        waiting: list[tuple[str, Any]] = [("input", list(args)), ("input", kwargs), ("", module)]
        waiting += [(type(value).__name__, value) for value in others]
        while waiting:
            name, value = waiting.pop()
            if id(value) in self._held or (content := _content(value)) is None:
                continue
            self._held[id(value)] = (name, value, content)
            waiting += [(_join(name, label), child) for label, child in _items(content)]
            if not isinstance(value, (*_SEQUENCES, dict, set, tuple, type)) and not _is_array(value):
                waiting += [(base.__name__, base) for base in type(value).__mro__]
            if len(self._held) > _MOST_OBJECTS:
                raise UnsupportedError(f"its attributes lead to more than {_MOST_OBJECTS} objects")
        self._python_random = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy_random = numpy.random.get_state() if numpy is not None else None
        generators = [value for _, value in self._values() if isinstance(value, torch.Generator)]
        self._generators = [(generator, generator.get_state()) for generator in generators]

    def __contains__(self, value: object) -> bool:
        """Returns whether `restore` undoes changes of `value`."""
        return id(value) in self._held

    def restore(self) -> None:
        """Restores everything. Does not touch objects that have not changed."""
        random.setstate(self._python_random)
        if self._numpy_random is not None:
            sys.modules["numpy"].random.set_state(self._numpy_random)
        for generator, state in self._generators:
            generator.set_state(state)
        for _, value, content in self._held.values():
            _restore(value, content)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Returns (where it was found, tensor) pairs; a tensor may appear more than once."""
        return ((name, value) for name, value in self._values() if isinstance(value, torch.Tensor))

    def replaced_tensors(self, other: PythonState) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yields (place, tensor here, tensor in `other`) for places that hold different tensors in the two states."""
        for identity, (name, _, content) in self._held.items():
            if identity not in other._held:
                continue
            there = dict(_items(other._held[identity][2]))
            for label, own in _items(content):
                others = there.get(label)
                if isinstance(own, torch.Tensor) and isinstance(others, torch.Tensor) and own is not others:
                    yield _join(name, label), own, others

    def difference(self, other: PythonState) -> tuple[str, str] | None:
        """Returns the first plain value in which `other` differs, as (name, "is A and B"), or None. Ignores tensors."""
        for identity, (name, value, content) in self._held.items():
            if identity not in other._held:
                continue
            here, there = dict(_items(content)), dict(_items(other._held[identity][2]))
            if isinstance(value, OrderedDict) and here.keys() == there.keys() and list(here) != list(there):
                return name, "has its items in another order"
            for label in {**here, **there}:
                own, others = here.get(label, _ABSENT), there.get(label, _ABSENT)
                if _are_other(own, others):
                    return _join(name, label), f"is {_shown(own)} and {_shown(others)}"
        return None

    def _values(self) -> Iterator[tuple[str, Any]]:
        for name, _, content in self._held.values():
            yield from ((_join(name, label), value) for label, value in _items(content))


def is_followed(value: object) -> bool:
    """Returns whether changes of an object can be undone."""
    return _content(value) is not None


def _content(value: Any) -> Any:
    """Returns a shallow copy of an object's content; None if the object is not followed."""
    if isinstance(value, dict):
        return dict(value.items())
    if isinstance(value, (*_SEQUENCES, tuple)):
        return list(value)
    if isinstance(value, set):
        return set(value)
    if _is_array(value):
        return value.copy()
    if isinstance(value, type):
        return (
            {name: member for name, member in vars(value).items() if not _is_code(member)} if _is_own(value) else None
        )
    is_followed = isinstance(value, nn.Module) or (_is_own(type(value)) and not isinstance(value, torch.Tensor))
    if not is_followed or not hasattr(value, "__dict__") or _is_code(value):
        return None
    if any(type(member).__module__.partition(".")[0] in _CONCURRENT for member in list(vars(value).values())):
        return None
    return {name: member for name, member in vars(value).items() if name != SLOT}


def _items(content: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(content, dict):
        yield from content.items()
    elif isinstance(content, set):
        yield from ((item if isinstance(item, _PLAIN) else id(item), item) for item in content)
    elif not _is_array(content):
        yield from enumerate(content)


def _restore(value: Any, content: Any) -> None:
    if isinstance(value, tuple):
        return
    if _is_array(value):
        value[...] = content
        return
    if isinstance(value, type):
        own = {name: member for name, member in vars(value).items() if not _is_code(member)}
        for name in own.keys() - content.keys():
            delattr(value, name)
        for name, member in content.items():
            if own.get(name, _ABSENT) is not member:
                setattr(value, name, member)
        return
    target = value
    if not isinstance(value, (*_SEQUENCES, dict, set)):
        target = vars(value)
        content = {**content, **{name: target[name] for name in (SLOT,) if name in target}}
    if _holds(target, content):
        return
    if isinstance(target, dict):
        base = OrderedDict if isinstance(target, OrderedDict) else dict  # OrderedDict stores its order separately
        base.clear(target)
        base.update(target, content)
    elif isinstance(target, set):
        set.clear(target)
        set.update(target, content)
    else:
        target.clear()
        target.extend(content)


def _holds(target: Any, content: Any) -> bool:
    """Returns whether a container holds the same objects as `content`, in the same order."""
    if len(target) != len(content):
        return False
    if isinstance(target, dict):
        pairs = zip(target.items(), content.items(), strict=True)
        return all(key is old_key and value is old for (key, value), (old_key, old) in pairs)
    if isinstance(target, set):
        return {id(item) for item in target} == {id(item) for item in content}
    return all(item is old for item, old in zip(target, content, strict=True))


def _are_other(own: Any, others: Any) -> bool:
    """Returns whether two values differ. Values that are not plain count as equal."""
    if own is _ABSENT or others is _ABSENT:
        return True
    if not isinstance(own, _PLAIN) or not isinstance(others, _PLAIN):
        return False
    are_nan = own != own and others != others
    return type(own) is not type(others) or (own != others and not are_nan)


def _is_own(kind: type) -> bool:
    """Returns whether a class is the user's and not torch's or Python's."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return is_users(path) if path is not None else kind.__module__ == "__main__"


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.flags.writeable


def _is_code(value: Any) -> bool:
    return isinstance(value, _CODE)


def _join(name: str, label: Any) -> str:
    """Joins names to "layers.0.weight", without the modules' internal dicts such as `_parameters`."""
    if label in _OF_MODULES:
        return name
    return f"{name}.{label}" if name else str(label)


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)[:40]
