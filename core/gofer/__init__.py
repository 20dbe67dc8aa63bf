"""Delegate work to subagents: a tool call becomes a child-agent run on a pluggable runner."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._discovery import PluginInfo
    from ._sessions import Session
    from ._sync import run
    from .blocks import Block, Image, Text, Thinking, ToolCall, ToolResult, Update
    from .children import Child
    from .config import AgentConfig, Config, load_config
    from .errors import (
        ConfigError,
        ContextOverflowError,
        GoferError,
        ModelError,
        PluginError,
        PluginErrors,
        PluginInternalError,
        PluginNotSupportedError,
        PluginValidationError,
        RunnerError,
    )
    from .final import FinalMessage
    from .hooks import hookimpl
    from .host import Host
    from .messages import Message, Request, Response, Tool, Tools, Usage
    from .model import Finish, Model
    from .runner import Capabilities, Run, Runner
    from .stream import TurnStream
    from .subagents import (
        SessionInfo,
        SubagentCallInput,
        SubagentCallOutput,
        SubagentResult,
        SubagentSpec,
        WorktreeConfig,
        WorktreeReport,
    )
    from .turn import StreamChunk, Turn

__all__ = [
    "AgentConfig",
    "Block",
    "Capabilities",
    "Child",
    "Config",
    "ConfigError",
    "ContextOverflowError",
    "FinalMessage",
    "Finish",
    "GoferError",
    "Host",
    "Image",
    "Message",
    "Model",
    "ModelError",
    "PluginError",
    "PluginErrors",
    "PluginInfo",
    "PluginInternalError",
    "PluginNotSupportedError",
    "PluginValidationError",
    "Request",
    "Response",
    "Run",
    "Runner",
    "RunnerError",
    "Session",
    "SessionInfo",
    "StreamChunk",
    "SubagentCallInput",
    "SubagentCallOutput",
    "SubagentResult",
    "SubagentSpec",
    "Text",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Tools",
    "Turn",
    "TurnStream",
    "Update",
    "Usage",
    "WorktreeConfig",
    "WorktreeReport",
    "hookimpl",
    "load_config",
    "run",
]

# A command or a plugin that needs little loads little: pydantic alone takes a fifth of a second.
_HOMES = {
    "._discovery": ("PluginInfo",),
    "._sessions": ("Session",),
    "._sync": ("run",),
    ".blocks": ("Block", "Image", "Text", "Thinking", "ToolCall", "ToolResult", "Update"),
    ".children": ("Child",),
    ".config": ("AgentConfig", "Config", "load_config"),
    ".errors": (
        "ConfigError",
        "ContextOverflowError",
        "GoferError",
        "ModelError",
        "PluginError",
        "PluginErrors",
        "PluginInternalError",
        "PluginNotSupportedError",
        "PluginValidationError",
        "RunnerError",
    ),
    ".final": ("FinalMessage",),
    ".hooks": ("hookimpl",),
    ".host": ("Host",),
    ".messages": ("Message", "Request", "Response", "Tool", "Tools", "Usage"),
    ".model": ("Finish", "Model"),
    ".runner": ("Capabilities", "Run", "Runner"),
    ".stream": ("TurnStream",),
    ".subagents": (
        "SessionInfo",
        "SubagentCallInput",
        "SubagentCallOutput",
        "SubagentResult",
        "SubagentSpec",
        "WorktreeConfig",
        "WorktreeReport",
    ),
    ".turn": ("StreamChunk", "Turn"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker reads the imports above, and finds wrong names

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name], __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
