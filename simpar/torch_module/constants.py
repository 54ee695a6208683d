"""What a module computes from no sample and no weight, as masks and angles; evaluated once, where values are known."""

from __future__ import annotations

from typing import Any, Final

from simpar.torch_module.graph import Node, Reader, inside
from simpar.torch_module.rules import UnclearError

NO_VALUE: Final = object()


class Constants:
    """Values of constants by the name that programs have for them; those on the meta device have none."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[int, Any] = {}
        self.values: dict[str, Any] = {}

    def named(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """The name and the shape of a constant; one row of what is alike for all samples."""
        name = f'constant/{node.name}'
        value = self.value(node)
        shape = node.shapes[0]
        if node.scales:
            shape = (1, *shape[1:])
            if value is not NO_VALUE:
                if not bool((value == value[:1]).all()):
                    raise UnclearError('reads a constant that differs from sample to sample; make it an input')
                value = value[:1]
        if value is not NO_VALUE:
            self.values[name] = value.detach().clone()
        return name, shape

    def value(self, node: Node) -> Any:
        """What it evaluates to, or ``NO_VALUE``."""
        import torch

        todo = [node]
        while todo:
            now = todo[-1]
            if id(now) in self._known:
                todo.pop()
                continue
            missing = [read for read in inside((now.positional, now.named)) if id(read) not in self._known]
            if missing:
                todo += missing
                continue
            with torch.no_grad():
                self._known[id(now)] = self._evaluated(now)
            todo.pop()
        return self._known[id(node)]

    def _evaluated(self, node: Node) -> Any:
        import torch

        if not node.target:
            found = self._reader.values.get(node.held, self._reader.values.get(node.name, NO_VALUE))
            return NO_VALUE if found is NO_VALUE or found.device.type == 'meta' else found

        def value(told: Any) -> Any:
            if isinstance(told, Node):
                return self._known[id(told)]
            if isinstance(told, dict):
                return {key: value(one) for key, one in told.items()}
            return [value(one) for one in told] if isinstance(told, list | tuple) else told

        if not node.is_aten:
            raise UnclearError(f'reads a constant of {node.target}, which is no operator of aten; make it a buffer')
        arguments, named = value(list(node.positional)), value(dict(node.named))
        if any(self._known[id(read)] is NO_VALUE for read in inside((node.positional, node.named))):
            return NO_VALUE
        name, _, overload = node.target.partition('.')
        return getattr(getattr(torch.ops.aten, name), overload)(*arguments, **named)
