"""One child for the command line: its life, what is shown of it, and the signals that end it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

import anyio
from anyio.abc import TaskStatus

from ._cli_output import Format, Plain, complain, is_terminal, note, write
from ._launch import Launched
from ._outcome import CANCELLED, partial, settled
from .blocks import Text, ToolCall
from .children import Child
from .errors import GoferError, PluginNotSupportedError
from .final import FinalMessage
from .hooks import hookimpl
from .host import Host
from .subagents import SubagentResult, SubagentSpec
from .turn import StreamChunk

__all__ = ["Job"]

OK, FAILED = 0, 1
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_KNOWN_CALLS = 1024
_RAN = ("loaded", "failed")
_LAST_WORDS = 0.1
"""How many seconds a second signal leaves for what is known, where nobody reads it."""
_NAMED, _LONGEST = 3, 100


class Job:
    """One child, who watches it, and the signals that end it.

    ``alone``, once it has ended: whether nothing but gofer's own plugins was loaded for it.

    :param launched: the program that supervises agents, where it has been started already.
    """

    def __init__(
        self,
        spec: SubagentSpec,
        settings: dict[str, Any],
        cwd: Path | None,
        output: Format,
        launched: Launched | None,
    ) -> None:
        self._spec, self._settings, self._cwd, self._format = spec, settings, cwd, output
        self._launched = launched
        self._stdout: TextIO | None = None
        talks = output is Format.text
        self._watcher = _Watcher(
            live=talks and is_terminal(sys.stdout), notes=talks and is_terminal(sys.stderr)
        )
        self._child: Child | None = None
        self._signal: int | None = None
        self._result: SubagentResult | None = None
        self._error: GoferError | None = None
        self.alone = False

    def main(self) -> int:
        """Run the child, print what came of it, and return the exit code."""
        self._stdout = sys.stdout
        try:
            # What a plugin or a runner prints is none of the result's.
            with nullcontext() if self._watcher.live else redirect_stdout(sys.stderr):
                anyio.run(self._run)
        finally:
            self._stdout = None  # somebody's own is to end when they let go of it
        if self._error is not None and self._signal is None:
            raise self._error
        if self._result is not None:
            self._print(self._result)
        if self._signal is not None:
            return 128 + self._signal
        return OK if self._result is not None and self._result.exit_ok else FAILED

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            await tasks.start(self._heed_signals, scope)
            with scope:
                try:
                    await self._work()
                except GoferError as error:
                    self._error = error
            tasks.cancel_scope.cancel()

    async def _work(self) -> None:
        plugins = [self._watcher] if self._watcher.watches else []
        async with Host(plugins, self._settings, cwd=self._cwd) as host:
            if self._launched is not None:
                await self._hand_over(self._launched, host)
            self._check_kept(host)
            self._child = await host.spawn(self._spec)
            if self._signal is not None:
                self._child.cancel()
            self._result = await self._child.wait()
            self.alone = {info.distribution for info in host.plugins if info.status in _RAN} <= {
                "gofer",
                None,
            }

    def _check_kept(self, host: Host) -> None:
        """Refuse a scope or a model server that would not be kept: who types it relies on it."""
        spec, server = self._spec, self._settings.get("base_url")
        if not spec.tool_scope and not (server and spec.agent):
            return
        name, runner = host._family.runner_of(spec)
        if runner is None:
            return
        whose = f"agent {spec.agent!r}" if spec.agent else f"runner {name!r}"
        if spec.tool_scope and not runner.capabilities.tool_scope:
            raise PluginNotSupportedError(
                f"{whose} has tools of its own, which --tool cannot take away: leave it out, "
                "and say in its settings what it may do"
            )
        if server and spec.agent and runner.observed:
            raise PluginNotSupportedError(
                f"{whose} makes its model requests itself, to a server that --base-url cannot "
                "choose: leave it out, and name the server in the agent's own configuration"
            )

    async def _hand_over(self, launched: Launched, host: Host) -> None:
        from .processes import Supervisor

        await host.resource(Supervisor, lambda: Supervisor(launched))

    async def _heed_signals(
        self, scope: anyio.CancelScope, *, task_status: TaskStatus[None]
    ) -> None:
        # One that is ignored is so on purpose, as nohup and a shell's & do.
        heeded = [
            number
            for number in (getattr(signal, name, None) for name in _SIGNALS)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN
        ]
        if not heeded or sys.platform == "win32":
            task_status.started()
            return
        with anyio.open_signal_receiver(*heeded) as received:
            task_status.started()
            async for number in received:
                if self._signal is not None:
                    # The second one does not wait; what supervises the agents ends them.
                    try:
                        self._say_what_is_known()
                    finally:
                        os._exit(128 + number)
                self._signal = number
                if self._watcher.notes:
                    note("gofer: stopping the child; once more ends gofer at once")
                if self._child is not None:
                    self._child.cancel()
                else:
                    scope.cancel()

    def _say_what_is_known(self) -> None:
        """Print what the child has said so far, as far as it is taken at once; all ends then."""
        child = self._child
        if child is None:
            return
        result = child.result or settled(
            partial("cancelled", CANCELLED, child.final, child.usage),
            child_id=child.id,
            runner=child.runner,
            worktree_path=None if child.worktree is None else str(child.worktree.path),
            report=None,
            timed_out=child.timed_out,
        )
        sys.stdout = self._stdout  # None where it is closed
        # Made non-blocking, it would be so for others who have it too, a shell for one.
        printing = threading.Thread(target=self._try_to_print, args=(result,), daemon=True)
        printing.start()
        printing.join(_LAST_WORDS)

    def _try_to_print(self, result: SubagentResult) -> None:
        with suppress(GoferError):
            self._print(result)

    def _print(self, result: SubagentResult) -> None:
        self._watcher.end_line()
        if self._format is Format.json:
            write(result.model_dump_json())
        elif result.summary and not self._watcher.has_shown(result.summary):
            write(result.summary)
        if self._signal is None and not result.exit_ok:
            complain(result.error or f"the child ended with {result.stop_reason!r:.100}")
        for remark in _remarks(self._spec, result):
            note(f"gofer: {remark}")
        if self._watcher.notes:
            if result.session is not None:
                note(f"session: {result.session.id}")
            if result.worktree is not None:
                changed = len(result.worktree.changed_files)
                note(f"worktree: {result.worktree.path}, changed files: {changed}")


def _remarks(spec: SubagentSpec, result: SubagentResult) -> Iterator[str]:
    """Yield what is not to be missed, whoever reads: what was not done, and what stays."""
    session, tree, denied = result.session, result.worktree_path, result.permissions_denied
    if spec.resume is not None and session is not None and not session.resumed:
        why = f" ({_line(session.reason)})" if session.reason else ""
        yield f"session {spec.resume!r} was not resumed{why}: a new one was begun, {session.id!r}"
    if denied:
        called = dict.fromkeys(map(_called, denied))
        named = ", ".join([*called][:_NAMED]) + (", ..." if len(called) > _NAMED else "")
        whose = f"agent {spec.agent!r}" if spec.agent else "the agent"
        yield (
            f"{len(denied)} permission{'s were' if len(denied) > 1 else ' was'} denied ({named}): "
            f"permissions, in the settings of {whose}, decides that"
        )
    if tree is not None and not result.exit_ok:
        remove = f"git worktree remove {shlex.quote(tree)}"
        yield f"the worktree {tree} stays; to remove it: {remove}"


def _called(denied: Any) -> str:
    """Return what one denied permission was for: its title, or else its kind."""
    data = denied if isinstance(denied, dict) else {"title": denied}
    names = (_line(name) for name in (data.get("title"), data.get("kind")) if name)
    return next(filter(None, names), "a tool")


def _line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


class _Watcher:
    """Shows what the child says and does while it runs.

    :param live: whether to write its text as it comes, to stdout.
    :param notes: whether to tell of its tool calls, on stderr.
    """

    name = "gofer-run"

    def __init__(self, *, live: bool, notes: bool) -> None:
        self.live = live
        self.notes = notes
        self.watches = live or notes
        self._plain = Plain()
        self._final = FinalMessage()
        self._at_start = True
        self._message: str | None = None
        self._calls: dict[str, None] = {}

    @hookimpl(trylast=True)
    def on_stream_chunk(self, chunk: StreamChunk) -> None:
        block, turn = chunk.block, chunk.turn
        if turn.subagent_id is None or turn.depth != turn.host.depth + 1:
            return
        if isinstance(block, Text) and self.live:
            self._final.add(block)
            if block.message_id != self._message:
                self._message = block.message_id
                self.end_line()
            text = self._plain.feed(block.text)
            if text:
                write(text, end="")
                self._at_start = text.endswith("\n")
        elif isinstance(block, ToolCall):
            self._final.add(block)
            if self.notes and block.id not in self._calls:
                self.end_line()
                note("> " + " ".join((block.title or block.name or "tool").split()))
                if len(self._calls) == _KNOWN_CALLS:
                    del self._calls[next(iter(self._calls))]
                self._calls[block.id] = None

    def end_line(self) -> None:
        """Go to a new line, if text was left in the middle of one."""
        if not self._at_start:
            write("")
            self._at_start = True

    def has_shown(self, summary: str) -> bool:
        """Say whether *summary* is what was seen last."""
        return self.live and self._final.text == summary
