"""The results that were collected already, so that they can be collected again."""

from __future__ import annotations

from collections import OrderedDict

from gofer import Child, SubagentResult

__all__ = ["Collected"]


class Collected:
    """The last results by id: at most *most* of them, and *size* bytes of text; older ones go."""

    def __init__(self, most: int = 256, size: int = 64 * 1024 * 1024) -> None:
        self._most = most
        self._size = size
        self._children: OrderedDict[str, tuple[Child, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._children)

    def add(self, child: Child, result: SubagentResult) -> None:
        """Keep *child*, whose result was collected now."""
        size = len(result.summary.encode()) + len((result.error or "").encode())
        self._children[child.id] = child, size
        self.bytes += size
        while len(self._children) > self._most or self.bytes > self._size:
            _, (_, dropped) = self._children.popitem(last=False)
            self.bytes -= dropped

    def get(self, child_id: str) -> Child | None:
        """Return a child that is kept, as the one used last."""
        kept = self._children.get(child_id)
        if kept is None:
            return None
        self._children.move_to_end(child_id)
        return kept[0]

    def clear(self) -> None:
        """Forget all."""
        self._children.clear()
        self.bytes = 0
