"""Serialization of model contexts in AutoGen's component format, and the lookup of their classes by import path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from otel_assembly.errors import ConfigurationError, UnknownNameError
from otel_assembly.model_context.state import read_form

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The packages with the same context classes: ours without AutoGen, ours on AutoGen's base class, AutoGen's own.
OURS: Final = "otel_assembly.model_context"
INSIDE_AUTOGEN: Final = "otel_assembly.instrumentation.autogen"
AUTOGENS: Final = "autogen_core.model_context"
_PACKAGES: Final = (OURS, INSIDE_AUTOGEN, AUTOGENS)
#: The package whose import path a dumped component contains.
Provider: TypeAlias = Literal["otel_assembly", "autogen"]
#: Settings that AutoGen's own contexts do not have.
_OWN_SETTINGS: Final = ("compat", "model")


class ComponentModel(BaseModel):
    """The serialized configuration of an object, in AutoGen's component format.

    Attributes:
        provider: The import path of the class.
        component_type: The kind of component, such as ``chat_completion_context``; None if it is not stated.
        version: The version of the configuration's format; None if it is not stated.
        component_version: The version of the component; None if it is not stated.
        description: A description in one sentence; None for no description.
        label: A name for display; None for no name.
        config: The settings of the object, by name.
    """

    model_config = ConfigDict(frozen=True)

    provider: str
    component_type: str | None = None
    version: int | None = None
    component_version: int | None = None
    description: str | None = None
    label: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)


def provider_of(context: type, names: Mapping[str, Any], provider: Provider) -> str:
    """Return the import path that the dumped component of a context contains.

    Args:
        context: The context's class.
        names: The context classes of this package, by name.
        provider: ``otel_assembly`` for the path of this class; ``autogen`` for AutoGen's class of the same name.

    Raises:
        ConfigurationError: `provider` is ``autogen``, and AutoGen has no class of this name.
    """
    override = vars(context).get("component_provider_override")
    if provider == "autogen":
        if override is None or names.get(context.__name__) is not context:
            raise ConfigurationError(f"AutoGen has no {context.__qualname__}; dump it with provider='otel_assembly'")
        return f"{AUTOGENS}.{context.__name__}"
    return str(override) if override is not None else f"{context.__module__}.{context.__qualname__}"


def config_as(config: dict[str, Any], provider: Provider) -> dict[str, Any]:
    """Return a configuration; for AutoGen, without the settings that AutoGen's classes do not have."""
    if provider == "autogen":
        return {name: value for name, value in config.items() if name not in _OWN_SETTINGS}
    return config


def read_component(component: Any) -> ComponentModel:
    """Parse a component that otel-assembly or AutoGen dumped.

    Raises:
        ConfigurationError: The argument is not a valid component.
    """
    fields = component.model_dump() if isinstance(component, BaseModel) else component
    return read_form(ComponentModel, fields, "component")


def named_in(table: Mapping[str, Any], provider: str) -> Any:
    """Return the context class that an import path names; None if the path is outside the known packages.

    Args:
        table: The context classes, by name.
        provider: The import path.

    Raises:
        UnknownNameError: The package is known but has no such context.
    """
    package, _, name = provider.rpartition(".")
    if package not in _PACKAGES:
        return None
    if name not in table:
        raise UnknownNameError("context", name, table)
    return table[name]
