"""Components: what a context's configuration is written as, and by which names it is found again."""

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
#: Whose name a dumped component has.
Provider: TypeAlias = Literal["otel_assembly", "autogen"]
#: Settings that AutoGen's contexts have not.
_OURS_ALONE: Final = ("compat", "model")


class ComponentModel(BaseModel):
    """A component as AutoGen writes it.

    Attributes:
        provider: Which class it is, by its import path.
        component_type: What kind of component.
        version: The version of the configuration's form.
        component_version: The version of the component.
        description: What it does, in a sentence.
        label: What people call it.
        config: Its configuration.
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
    """The name by which a class of context is found again.

    Args:
        context: The class.
        names: The table of contexts, by their names.
        provider: Whose name is asked for.

    Raises:
        ConfigurationError: AutoGen's is asked for, and it has no such class.
    """
    own = vars(context).get("component_provider_override")
    if provider == "autogen":
        if own is None or names.get(context.__name__) is not context:
            raise ConfigurationError(f"AutoGen has no {context.__qualname__}; dump it with provider='otel_assembly'")
        return f"{AUTOGENS}.{context.__name__}"
    return str(own) if own is not None else f"{context.__module__}.{context.__qualname__}"


def config_as(config: dict[str, Any], provider: Provider) -> dict[str, Any]:
    """A configuration without what the provider's class would not know."""
    if provider == "autogen":
        return {name: value for name, value in config.items() if name not in _OURS_ALONE}
    return config


def component_read(component: Any) -> ComponentModel:
    """A component that was dumped, by us or by AutoGen.

    Raises:
        ConfigurationError: It is none.
    """
    given = component.model_dump() if isinstance(component, BaseModel) else component
    return read_form(ComponentModel, given, "component")


def named_in(table: Mapping[str, Any], provider: str) -> Any:
    """The context of a table that a provider's name stands for; None where it is none of the known packages'.

    Raises:
        UnknownNameError: It is, and has no such context.
    """
    package, _, name = provider.rpartition(".")
    if package not in _PACKAGES:
        return None
    if name not in table:
        raise UnknownNameError("context", name, table)
    return table[name]
