"""Delegate work to subagents: a tool call becomes a child-agent run on a pluggable runner."""

from __future__ import annotations

from ._discovery import PluginInfo
from ._sessions import Session
from ._sync import run
from .blocks import Block, Image, Text, Thinking, ToolCall, ToolResult, Update
from .children import Child
from .config import AgentConfig, Config, load_config
from .errors import (
    ConfigError,
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
from .runner import Run, Runner
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
    "Child",
    "Config",
    "ConfigError",
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
