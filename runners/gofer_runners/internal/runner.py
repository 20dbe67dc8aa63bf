"""The runner ``internal``: a nested harness with an empty context, for one task."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gofer import (
    Capabilities,
    Message,
    Model,
    PluginValidationError,
    Request,
    Run,
    Runner,
    SubagentResult,
    SubagentSpec,
)
from gofer.roots import Roots

from ._files import file_tools
from ._loop import Loop
from ._mcp import McpServer, mcp_tools
from ._programs import program_tools

__all__ = ["SYSTEM_PROMPT", "InternalRunner"]

SYSTEM_PROMPT = """\
You are an agent that does one task on its own, in the directory {cwd}. Nobody answers questions: \
decide for yourself and go on. Use the tools to look before you change anything, and check what \
you did. Paths are relative to that directory. When you are done, answer without calling a tool: \
that last message is all that is read of you, so it must be the whole report, with what you did, \
what you found and what you could not do."""


class _Options(BaseModel):
    """What ``spec.options`` may hold."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    max_turns: int | None = Field(default=None, gt=0)
    extra: dict[str, Any] = Field(default_factory=dict)


class InternalRunner(Runner):
    """Runs a child as a loop over a model, with tools for files and commands.

    Everything the model asks for is done at once: there is nobody to ask. Nothing of it persists
    but what it changes in its directory.

    :param model: what is asked: a model, or the name of the runner that offers one.
    :param max_turns: requests to the model for one child.
    :param shell: whether there is a tool that runs commands.
    :param roots: further directories that the file tools may use.
    :param mcp_servers: MCP servers whose tools are offered too, by name.
    :param temperature: of each request; ``max_tokens``: of each response.
    :param system_prompt: in place of the harness's own; ``{cwd}`` is the directory.
    """

    name: ClassVar[str] = "internal"
    capabilities: ClassVar[Capabilities] = Capabilities(
        streams=True, cwd=True, tool_scope=True, tools=True
    )
    observed = False

    class Config(BaseModel):
        """The settings in ``[tool.gofer.runners.internal]``."""

        model_config = ConfigDict(extra="forbid", protected_namespaces=())

        model: str = "llama-server"
        max_turns: int = Field(default=100, gt=0)
        shell: bool = True
        roots: list[Path] = Field(default_factory=list)
        mcp_servers: dict[str, McpServer] = Field(default_factory=dict)
        temperature: float | None = None
        max_tokens: int | None = Field(default=None, gt=0)
        system_prompt: str = SYSTEM_PROMPT

    def __init__(
        self,
        model: str | Model = "llama-server",
        *,
        max_turns: int = 100,
        shell: bool = True,
        roots: list[Path] | None = None,
        mcp_servers: dict[str, McpServer] | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        system_prompt: str = SYSTEM_PROMPT,
    ) -> None:
        self._model = model
        self._max_turns = max_turns
        self._shell = shell
        self._roots = roots or []
        self._mcp_servers = mcp_servers or {}
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._system_prompt = system_prompt

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        """Work on the task until the model calls no tool any more; its last message is the report.

        :raises PluginValidationError: the task is blank, or an option is unknown or wrong.
        :raises ModelError: the model's server was not reached, refused, or broke off.
        """
        if not run.prompt.strip():
            raise PluginValidationError("internal.task", "is blank: say what to do")
        try:
            options = _Options.model_validate(spec.options)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise PluginValidationError(
                ".".join(["internal.options", *map(str, wrong["loc"])]),
                f"{wrong['msg']}; known are {', '.join(_Options.model_fields)}",
            ) from None
        model = run.host.model(self._model) if isinstance(self._model, str) else self._model
        # What Git reads there can name programs that it runs, and gofer itself calls Git.
        roots = Roots([run.cwd, *(run.cwd / root for root in self._roots)], kept={".git"})
        tools = [
            *file_tools(roots),
            *program_tools(run, roots, shell=self._shell),
            *await mcp_tools(run.host, self._mcp_servers),
        ]
        request = Request(
            messages=[
                # Not str.format: braces in a directory's name are braces.
                Message("system", self._system_prompt.replace("{cwd}", str(run.cwd))),
                Message("user", run.prompt),
            ],
            model=options.model,
            temperature=self._temperature if options.temperature is None else options.temperature,
            max_tokens=options.max_tokens or self._max_tokens,
            extra=options.extra,
        )
        loop = Loop(run, model, tools, request, options.max_turns or self._max_turns)
        return await loop.go()
