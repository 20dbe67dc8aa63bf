"""What a tool of the harness is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gofer import GoferError, Tool

__all__ = ["Arguments", "HarnessTool", "ToolFailure", "schema_of"]


class ToolFailure(GoferError):
    """A tool could not do what it was asked: says why, so that the model can do better."""


class Arguments(BaseModel):
    """The arguments of a tool: the model's words are checked against a subclass."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class HarnessTool:
    """A tool that the harness executes itself.

    ``call`` takes the arguments, checked against ``arguments`` where that is given. ``reads``:
    it changes nothing, so that calls of it may run together.
    """

    name: str
    description: str
    call: Callable[[Any], Awaitable[str]]
    arguments: type[Arguments] | None = None
    reads: bool = False
    input_schema: dict[str, Any] | None = None

    def offer(self) -> Tool:
        """Return what the model is told of it."""
        schema = self.input_schema or (schema_of(self.arguments) if self.arguments else None)
        if schema is None:
            return Tool(name=self.name, description=self.description)
        return Tool(name=self.name, description=self.description, input_schema=schema)

    async def execute(self, arguments: Any) -> str:
        """Run it.

        :raises ToolFailure: the arguments are wrong, or it failed; says what would be right.
        """
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            arguments = {}  # models that give none write nothing
        if isinstance(arguments, str):
            raise ToolFailure(
                f"the arguments of {self.name} are no JSON: {arguments!r:.200}. Send a JSON object"
            )
        if not isinstance(arguments, dict):
            raise ToolFailure(f"the arguments of {self.name} must be a JSON object")
        if self.arguments is None:
            return await self.call(arguments)
        try:
            checked = self.arguments.model_validate(arguments)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}"
                for problem in error.errors(include_url=False)
            )
            known = ", ".join(self.arguments.model_fields)
            raise ToolFailure(
                f"wrong arguments for {self.name}: {problems}. It takes: {known}"
            ) from None
        return await self.call(checked)


def schema_of(arguments: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of *arguments*, without the titles that no model needs."""
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    schema.pop("description", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    return schema
