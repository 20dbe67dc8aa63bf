"""Delegate work to subagents: a tool call becomes a child-agent run on a pluggable runner."""

from __future__ import annotations

from .blocks import Block, Image, Text, Thinking, ToolCall, ToolResult, Update
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
from .messages import Message, Request, Response, Tool, Tools, Usage
from .model import Finish, Model
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
