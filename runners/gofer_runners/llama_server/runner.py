"""The runner ``llama-server``: a child is one turn of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from gofer import (
    Capabilities,
    ContextOverflowError,
    Host,
    Message,
    PluginValidationError,
    Request,
    Run,
    Runner,
    SubagentResult,
    SubagentSpec,
)

from .model import LlamaServer

__all__ = ["LlamaServerRunner"]

_Seconds = Annotated[float, Field(gt=0)]


class _Sampling(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | None = None
    temperature: float | None = Field(None, ge=0)
    max_tokens: int | None = Field(None, gt=0)


class _Options(_Sampling):
    """What ``SubagentSpec.options`` may hold for this runner."""

    extra: dict[str, Any] = Field(default_factory=dict)


class LlamaServerRunner(Runner):
    """Runs a child as one request to an OpenAI-compatible server.

    The task is the only message; what the model says is the child's report. The child's
    ``options`` may hold ``model``, ``temperature``, ``max_tokens``, and ``extra``, further fields
    of the request's body. ``model`` is the :class:`LlamaServer` that it asks; others may use it.

    :param temperature: for children that name none.
    :param max_tokens: for children that name none.

    The other parameters are those of :class:`LlamaServer`.
    """

    name: ClassVar[str] = "llama-server"
    capabilities: ClassVar[Capabilities] = Capabilities(streams=True)
    observed = False

    class Config(_Sampling):
        """The settings in ``[tool.gofer.runners.llama-server]``."""

        base_url: str | None = None
        api_key: SecretStr | None = None
        connect_timeout: _Seconds = 10.0
        read_timeout: _Seconds | None = 300.0
        load_timeout: _Seconds = 120.0
        model_file: Path | None = None
        slots: int = Field(4, gt=0)
        context: int = Field(4096, gt=0)

    def __init__(
        self,
        base_url: str | None = None,
        model: str | None = None,
        api_key: str | SecretStr | None = None,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float | None = 300.0,
        load_timeout: float = 120.0,
        model_file: str | Path | None = None,
        slots: int = 4,
        context: int = 4096,
    ) -> None:
        self.model = LlamaServer(
            base_url,
            model,
            api_key.get_secret_value() if isinstance(api_key, SecretStr) else api_key,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            load_timeout=load_timeout,
            model_file=model_file,
            slots=slots,
            context=context,
        )
        self._temperature = temperature
        self._max_tokens = max_tokens

    def bind(self, host: Host) -> None:
        """Let the model use the settings of *host*."""
        self.model.bind(host)

    async def run(self, spec: SubagentSpec, run: Run) -> SubagentResult:
        """Ask the model once; its final message is the child's.

        A task that does not fit the model's context ends with ``max_tokens`` and an error.

        :raises PluginValidationError: the task is blank, or an option is unknown or wrong.
        :raises ModelError: the server was not reached, refused, or broke off.
        """
        if not run.prompt.strip():
            raise PluginValidationError("llama-server.task", "is blank: say what to do")
        try:
            options = _Options.model_validate(spec.options)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise PluginValidationError(
                ".".join(["llama-server.options", *map(str, wrong["loc"])]),
                f"{wrong['msg']}; known are {', '.join(_Options.model_fields)}",
            ) from None
        temperature, max_tokens = options.temperature, options.max_tokens
        request = Request(
            messages=[Message("user", run.prompt)],
            model=options.model,
            temperature=self._temperature if temperature is None else temperature,
            max_tokens=self._max_tokens if max_tokens is None else max_tokens,
            extra=options.extra,
        )
        try:
            async with run.stream(request, self.model) as stream:
                async for _ in stream:
                    pass
        except ContextOverflowError as error:
            return run.result(stop_reason="max_tokens", error=str(error))
        response = stream.response
        error_text = None
        if response.stop_reason == "tool_use":
            error_text = (
                "the model ended its turn with tool calls, and this runner does one turn only: "
                "a child that works with tools needs a runner with a loop, such as internal"
            )
        return run.result(stop_reason=response.stop_reason, usage=response.usage, error=error_text)
