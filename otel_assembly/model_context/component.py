"""Serialized configurations (components) of contexts, and the names of their classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from otel_assembly.errors import ConfigurationError, UnknownNameError
from otel_assembly.model_context.state import read_form

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The packages that have a context of each name: ours, ours with AutoGen's messages, AutoGen's.
OURS: Final = "otel_assembly.model_context"
INSIDE_AUTOGEN: Final = "otel_assembly.instrumentation.autogen"
AUTOGENS: Final = "autogen_core.model_context"
_PACKAGES: Final = (OURS, INSIDE_AUTOGEN, AUTOGENS)
#: The package whose class name a dumped component contains.
Provider: TypeAlias = Literal["otel_assembly", "autogen"]
#: Settings that AutoGen's contexts do not have.
_OURS_ALONE: Final = ("compat", "model")


class ComponentModel(BaseModel):
    """A component in AutoGen's format.

    Attributes:
        provider: The import path of the class.
        component_type: The kind of component.
        version: The version of the configuration's format.
        component_version: The version of the component.
        description: A description in one sentence.
        label: A name for display.
        config: The configuration.
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
    """Return the import path of a context's class for a component.

    Args:
        context: The class.
        names: The contexts by name.
        provider: The package whose class is named.

    Raises:
        ConfigurationError: `provider` is ``autogen``, which has no such class.
    """
    own = vars(context).get("component_provider_override")
    if provider == "autogen":
        if own is None or names.get(context.__name__) is not context:
            raise ConfigurationError(f"AutoGen has no {context.__qualname__}; dump it with provider='otel_assembly'")
        return f"{AUTOGENS}.{context.__name__}"
    return str(own) if own is not None else f"{context.__module__}.{context.__qualname__}"


def config_as(config: dict[str, Any], provider: Provider) -> dict[str, Any]:
    """Return a configuration without settings that the provider's class does not have."""
    if provider == "autogen":
        return {name: value for name, value in config.items() if name not in _OURS_ALONE}
    return config


def component_read(component: Any) -> ComponentModel:
    """Parse a component that otel-assembly or AutoGen dumped.

    Raises:
        ConfigurationError: It is not a valid component.
    """
    given = component.model_dump() if isinstance(component, BaseModel) else component
    return read_form(ComponentModel, given, "component")


def named_in(table: Mapping[str, Any], provider: str) -> Any:
    """Return the context class of an import path; None if the path belongs to an unknown package.

    Raises:
        UnknownNameError: The package is known but has no such context.
    """
    package, _, name = provider.rpartition(".")
    if package not in _PACKAGES:
        return None
    if name not in table:
        raise UnknownNameError("context", name, table)
    return table[name]
