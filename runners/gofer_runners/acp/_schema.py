"""The protocol's messages that gofer reads (Agent Client Protocol, version 1).

Small models that ignore what they do not know: an agent that says more, or says something
strange in a field that does not matter, is understood all the same.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from gofer import RunnerError

from ._text import cut

__all__ = [
    "AuthMethod",
    "Initialized",
    "NewSession",
    "PromptEnd",
    "read",
]

PROTOCOL_VERSION = 1


class _OrNone:
    """Reads a field as None where it does not fit: better no value than no turn."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_default_schema(handler(source), default=None, on_error="default")


def _objects(value: Any) -> Any:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(value: Any) -> Any:
    return value if isinstance(value, dict) else {}


T = TypeVar("T")
Lenient = Annotated[T | None, _OrNone()]
Objects = Annotated[list[T], BeforeValidator(_objects)]
Object = Annotated[dict[str, Any], BeforeValidator(_object)]
Count = Annotated[int, Field(ge=0)]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1), AfterValidator(cut)]


class _Message(BaseModel):
    model_config = ConfigDict(
        extra="ignore", alias_generator=to_camel, populate_by_name=True, protected_namespaces=()
    )


class _Implementation(_Message):
    name: Lenient[str] = None
    title: Lenient[str] = None
    version: Lenient[str] = None


class _Capabilities(_Message):
    load_session: Lenient[bool] = None
    session_capabilities: Object = Field(default_factory=dict)
    mcp_capabilities: Object = Field(default_factory=dict)


class _Variable(_Message):
    name: Lenient[str] = None


class AuthMethod(_Message):
    """One way to log in that an agent offers."""

    id: Lenient[str] = None
    name: Lenient[str] = None
    description: Lenient[str] = None
    type: Lenient[str] = None
    vars: Objects[_Variable] = []

    @property
    def variables(self) -> list[str]:
        """The environment variables that it needs."""
        return [variable.name for variable in self.vars if variable.name]


class Initialized(_Message):
    """What an agent says of itself."""

    protocol_version: Lenient[int] = None
    agent_capabilities: Lenient[_Capabilities] = None
    auth_methods: Objects[AuthMethod] = []
    agent_info: Lenient[_Implementation] = None

    @property
    def resumes(self) -> bool:
        """Whether it offers ``session/resume``."""
        capabilities = self.agent_capabilities
        return capabilities is not None and isinstance(
            capabilities.session_capabilities.get("resume"), dict
        )

    @property
    def loads(self) -> bool:
        """Whether it offers ``session/load``."""
        return bool(self.agent_capabilities and self.agent_capabilities.load_session)


class _Choice(_Message):
    """An entry of a list of options; groups hold further ones."""

    value: Lenient[str] = None
    id: Lenient[str] = None
    model_id: Lenient[str] = None
    options: Objects[Any] = []


class ConfigOption(_Message):
    """A setting of a session."""

    id: Lenient[str] = None
    category: Lenient[str] = None
    type: Lenient[str] = None
    current_value: Any = None
    options: Objects[_Choice] = []

    @property
    def values(self) -> list[str]:
        """What it may be set to, in groups or not."""
        found: list[str] = []
        for choice in self.options:
            inner = [str(item["value"]) for item in choice.options if "value" in item]
            found += inner or ([choice.value] if choice.value is not None else [])
        return found


class _Modes(_Message):
    current_mode_id: Lenient[str] = None
    available_modes: Objects[_Choice] = []


class _Models(_Message):
    current_model_id: Lenient[str] = None
    available_models: Objects[_Choice] = []


class NewSession(_Message):
    """The answer to ``session/new``, ``session/load`` or ``session/resume``."""

    session_id: Lenient[str] = None
    modes: Lenient[_Modes] = None
    models: Lenient[_Models] = None
    config_options: Objects[ConfigOption] = []


class _Usage(_Message):
    input_tokens: Lenient[Count] = None
    output_tokens: Lenient[Count] = None
    cached_read_tokens: Lenient[Count] = None
    thought_tokens: Lenient[Count] = None


class PromptEnd(_Message):
    """The answer to ``session/prompt``."""

    stop_reason: Lenient[Reason] = None
    usage: Lenient[_Usage] = None


M = TypeVar("M", bound=_Message)


def read(model: type[M], data: Any, method: str) -> M:
    """Return *data* as a *model*; what is no object as an empty one.

    :raises RunnerError: it cannot be read so at all; *method* names what it answers.
    """
    try:
        return model.model_validate(_object(data))
    except ValidationError as error:
        raise RunnerError(f"the agent's answer to {method} cannot be read: {error}") from None
