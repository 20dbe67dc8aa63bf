"""Calls of the tools that an agent offers: every agent has its own names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call", "Offered", "call_shell", "call_write", "example"]

# In the order in which they are preferred.
SHELLS = (
    "bash",
    "Bash",
    "run_shell_command",
    "exec_command",
    "shell_command",
    "shell",
    "execute",
    "execute_command",
    "run_commands",
    "run_command",
    "terminal",
)
WRITERS = (
    "write",
    "Write",
    "write_file",
    "write_to_file",
    "write_text_file",
    "create",
    "create_file",
    "apply_patch",
    "editor",
)


@dataclass(frozen=True)
class Offered:
    """A tool, as the request describes it. *kind* is ``custom`` where it takes a plain text."""

    name: str
    schema: dict[str, Any] = field(default_factory=dict)
    kind: str = "function"
    namespace: str | None = None

    def argument(self, name: str) -> dict[str, Any] | None:
        """Return the schema of one argument, if it has it."""
        found = (self.schema.get("properties") or {}).get(name)
        return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Call:
    """A call of a tool; its arguments are a text where the tool is a custom one."""

    tool: Offered
    arguments: dict[str, Any] | str


def call_shell(tools: Sequence[Offered], command: str) -> Call | None:
    """Return a call that runs *command*, if there is a tool for it."""
    tool = _find(tools, SHELLS)
    if tool is None:
        return None
    argv = ["bash", "-c", command]
    # Codex looks after ten seconds what became of it, unless it is told to wait longer.
    known: dict[str, Any] = {"commands": [command], "yield_time_ms": 30_000}
    for name in ("command", "cmd", "script"):
        schema = tool.argument(name) or {}
        known[name] = argv if _type(schema) == "array" else command
    return _call(tool, known)


def call_write(tools: Sequence[Offered], path: str, content: str) -> Call | None:
    """Return a call that writes a new file, if there is a tool for it."""
    tool = _find(tools, WRITERS)
    if tool is None:
        return None
    if tool.name == "apply_patch":
        lines = "".join(f"+{line}\n" for line in content.splitlines())
        patch = f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n"
        if tool.kind == "custom":
            return Call(tool, patch)
        return _call(tool, {"input": patch, "patch": patch, "patchText": patch})
    paths = dict.fromkeys(("path", "filePath", "file_path", "absolute_path"), path)
    contents = dict.fromkeys(("content", "contents", "file_text", "new_text"), content)
    return _call(tool, {"command": "create", **paths, **contents})


def _find(tools: Sequence[Offered], names: Sequence[str]) -> Offered | None:
    by_name = {tool.name: tool for tool in tools}
    for name in names:
        if name in by_name:
            return by_name[name]
    # Some add the name of a server in front.
    for name in names:
        for tool in tools:
            if tool.name.endswith((f"_{name}", f".{name}", f"-{name}")):
                return tool
    return None


def _call(tool: Offered, known: dict[str, Any]) -> Call:
    """Give the arguments that the tool has; and to the others that it needs, some value."""
    arguments = {name: value for name, value in known.items() if tool.argument(name) is not None}
    return Call(tool, example(tool.schema) | arguments)


def example(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """Return some value that fits *schema*, or at least looks like it."""
    root = schema if root is None else root
    if (reference := schema.get("$ref")) is not None:
        definitions = root.get("$defs") or root.get("definitions") or {}
        return example(definitions.get(reference.rpartition("/")[2], {}), root)
    for key in ("enum", "anyOf", "oneOf"):
        if schema.get(key):
            first = schema[key][0]
            return first if key == "enum" else example(first, root)
    if "const" in schema:
        return schema["const"]
    match _type(schema):
        case "object":
            properties = schema.get("properties") or {}
            needed = schema.get("required") or ()
            return {name: example(properties.get(name, {}), root) for name in needed}
        case "array":
            return [example(schema.get("items") or {}, root)] if schema.get("minItems") else []
        case "boolean":
            return False
        case "integer" | "number":
            return 1
        case _:
            return "some text"


def _type(schema: dict[str, Any]) -> str:
    found = schema.get("type", "object" if "properties" in schema else "string")
    return str(found[0] if isinstance(found, list) else found).lower()
