"""Mode, model and options of a session, set as configured."""

from __future__ import annotations

import logging
from typing import Any

from gofer import RunnerError

from ._connection import Connection
from ._schema import ConfigOption, NewSession
from ._settings import AcpAgent
from ._text import cut

__all__ = ["apply"]

log = logging.getLogger("gofer.acp")


async def apply(
    connection: Connection, session_id: str, state: NewSession, agent: AcpAgent
) -> None:
    """Set what is configured and differs from what is.

    :param state: what the agent said of the session.
    :raises RunnerError: the agent does not offer what is configured; lists what it offers.
    """
    options = _Options(connection, session_id, state)
    for name, value in agent.config_options.items():
        await options.set_option(name, value)
    if agent.mode is not None:
        await options.set_mode(agent.mode)
    if agent.model is not None:
        await options.set_model(agent.model, strict=True)
    elif agent.preferred_model is not None:
        await options.set_model(agent.preferred_model, strict=False)


class _Options:
    def __init__(self, connection: Connection, session_id: str, state: NewSession) -> None:
        self._connection = connection
        self._session_id = session_id
        self._state = state

    async def set_mode(self, mode: str) -> None:
        option = self._named("mode")
        if option is not None and option.id is not None:
            await self._choose(option, option.id, mode)
            return
        modes = self._state.modes
        offered = [choice.id for choice in modes.available_modes if choice.id] if modes else []
        if mode not in offered:
            raise _not_offered("mode", mode, offered)
        if modes is None or modes.current_mode_id != mode:
            await self._ask("session/set_mode", {"modeId": mode})

    async def set_model(self, model: str, *, strict: bool) -> None:
        option = self._named("model")
        models = self._state.models
        if option is not None:
            offered = option.values
        else:
            choices = models.available_models if models else []
            offered = [choice.model_id for choice in choices if choice.model_id]
        if model not in offered:
            if strict:
                raise _not_offered("model", model, offered)
            log.info("the agent does not offer the model %r: its own default is used", model)
        elif option is not None and option.id is not None:
            await self._choose(option, option.id, model)
        elif models is None or models.current_model_id != model:
            await self._ask("session/set_model", {"modelId": model})

    async def set_option(self, name: str, value: str | bool) -> None:
        option = next((o for o in self._state.config_options if o.id == name), None)
        if option is None:
            known = [o.id for o in self._state.config_options if o.id]
            raise _not_offered("config option", name, known)
        if not isinstance(value, bool):
            await self._choose(option, name, value)
        elif option.current_value is not value:
            params = {"configId": name, "type": "boolean", "value": value}
            await self._ask("session/set_config_option", params)

    def _named(self, what: str) -> ConfigOption | None:
        options = [o for o in self._state.config_options if o.id]
        by_id = (o for o in options if o.id == what)
        by_category = (o for o in options if o.category == what)
        return next(by_id, None) or next(by_category, None)

    async def _choose(self, option: ConfigOption, name: str, value: str) -> None:
        if value not in option.values:
            raise _not_offered(name, value, option.values)
        if value != option.current_value:
            await self._ask("session/set_config_option", {"configId": name, "value": value})

    async def _ask(self, method: str, params: dict[str, Any]) -> None:
        await self._connection.request(method, {"sessionId": self._session_id, **params})


def _not_offered(what: str, value: str, offered: list[str]) -> RunnerError:
    listed = cut(", ".join(offered)) or "none"
    return RunnerError(f"the agent offers no {what} {value!r}; it offers: {listed}")
