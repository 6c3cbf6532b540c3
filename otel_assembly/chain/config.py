"""Chains written down: a YAML or JSON file, a mapping, or one line for the command line."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from otel_assembly._internal.arguments import OnError, OnHalt  # noqa: TC001  # pydantic reads it
from otel_assembly.errors import ConfigurationError, UnknownNameError
from otel_assembly.policies import POLICIES, DecidingPolicy
from otel_assembly.tokens import MessageFraming

if TYPE_CHECKING:
    from otel_assembly.policies import AssemblyPolicy


#: The types of what a file can say.
_WRITTEN: Final = (str, int, float, bool, NoneType)
_PLAIN: Final = MessageFraming()
_FRAMING: Final = tuple(field.name for field in dataclass_fields(MessageFraming))


class Chain(NamedTuple):
    """A chain and the assembler's other settings."""

    policies: list[AssemblyPolicy]
    settings: dict[str, Any]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = None
    model: str | None = None
    on_policy_error: OnError = "raise"
    on_halt: OnHalt = "raise"
    strict: bool = False
    framing: dict[str, Any] | None = None
    policies: list[str | dict[str, Any]] = Field(default_factory=list)


#: Parameters that a policy gets where its entry does not say otherwise, by the policy's name.
Defaults = Mapping[str, Mapping[str, Any]]


def chain_from_config(config: Mapping[str, Any] | str | PathLike[str], defaults: Defaults | None = None) -> Chain:
    """Read a mapping or a file.

    Raises:
        ConfigurationError: What is wrong, where, and the mend.
    """
    if isinstance(config, Mapping):
        return _chain(config, "config", defaults or {})
    path = fspath(config)
    return _chain(_read(path), path, defaults or {})


def _read(path: str) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{path}: cannot be read: {why}") from error
    try:
        return json.loads(text) if path.lower().endswith(".json") else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else path
        raise ConfigurationError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'malformed'}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error


def _chain(form: Any, where: str, defaults: Defaults) -> Chain:
    if not isinstance(form, Mapping):
        raise ConfigurationError(f"{where}: expected a mapping with 'policies', found {type(form).__name__}")
    for key in form:
        if key not in _Form.model_fields:
            raise ConfigurationError(f"{where}: {UnknownNameError('setting', str(key), _Form.model_fields)}")
    try:
        read = _Form.model_validate(dict(form))
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {_first(error)}") from error
    policies = [_entry(entry, f"{where}: policies[{index}]", defaults) for index, entry in enumerate(read.policies)]
    settings = read.model_dump(exclude={"policies", "framing"})
    return Chain(policies, {**settings, "framing": _framing(read.framing or {}, where)})


def _framing(form: Mapping[str, Any], where: str) -> MessageFraming:
    for key in form:
        if key not in _FRAMING:
            raise ConfigurationError(f"{where}: framing: {UnknownNameError('figure', str(key), _FRAMING)}")
    try:
        return MessageFraming(**form)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _entry(entry: str | Mapping[str, Any], where: str, defaults: Defaults) -> AssemblyPolicy:
    if isinstance(entry, str):
        return make_policy(entry, defaults.get(entry, {}), where)
    if len(entry) != 1:
        raise ConfigurationError(f"{where}: expected one policy name with its parameters, found {len(entry)} keys")
    ((name, parameters),) = entry.items()
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ConfigurationError(f"{where}.{name}: expected a mapping of parameters, found {parameters!r}")
    return make_policy(str(name), {**defaults.get(str(name), {}), **(parameters or {})}, where)


def make_policy(name: str, parameters: Mapping[str, Any], where: str) -> AssemblyPolicy:
    """A policy of ours by its name.

    Raises:
        ConfigurationError: The name or a parameter is unknown, missing, or of another type; `where` begins the message.
    """
    policy = POLICIES.get(name)
    if policy is None:
        raise ConfigurationError(f"{where}: {UnknownNameError('policy', name, POLICIES)}")
    known = parameters_of(policy.name)
    for parameter in parameters:
        if parameter not in known.model_fields:
            raise ConfigurationError(
                f"{where}.{name}: {UnknownNameError('parameter', str(parameter), known.model_fields)}"
                if known.model_fields
                else f"{where}.{name}: takes no parameters, found {parameter!r}"
            )
    try:
        checked = known.model_validate(parameters)
        return policy(**{field: getattr(checked, field) for field in checked.model_fields_set})
    except ValidationError as error:
        raise ConfigurationError(f"{where}.{name}.{_first(error)}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


@cache
def parameters_of(name: str) -> type[BaseModel]:
    """The parameters of a policy of ours, as a model made from its constructor."""
    policy = POLICIES[name]
    signature = inspect.signature(policy)
    hints = get_type_hints(policy.__init__)
    fields: dict[str, Any] = {
        name: (_sayable(hints[name]), ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in signature.parameters.items()
    }
    return create_model(policy.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)


def _sayable(hint: Any) -> Any:
    """A parameter's type where a file can say all of it; else anything, and the policy checks what it is given."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return hint if all(one in _WRITTEN or get_origin(one) is Literal for one in members) else Any


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "value"
    return f"{place}: {first['msg']}"


def chain_from_spec(spec: str, defaults: Defaults | None = None) -> list[AssemblyPolicy]:
    """Read a chain on one line: ``conversation,sliding_window:max_events=50:stride=10,token_budget:max_tokens=8000``.

    Raises:
        ConfigurationError: What is wrong in which policy, and the mend.
    """
    policies: list[AssemblyPolicy] = []
    for index, part in enumerate(spec.split(",")):
        name, *settings = (piece.strip() for piece in part.split(":"))
        where = f"policies[{index}]"
        if not name:
            raise ConfigurationError(f"{where}: empty; expected policies by name, separated by commas")
        parameters: dict[str, Any] = dict((defaults or {}).get(name, {}))
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals or not key:
                raise ConfigurationError(f"{where}.{name}: expected parameter=value, found {setting!r}")
            try:
                parameters[key.strip()] = yaml.safe_load(value)
            except (yaml.YAMLError, ValueError) as error:
                raise ConfigurationError(f"{where}.{name}.{key.strip()}: cannot be read: {value!r}") from error
        policies.append(make_policy(name, parameters, where))
    return policies


def chain_to_config(policies: Sequence[AssemblyPolicy], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping that `chain_from_config` reads back.

    Raises:
        ConfigurationError: A policy is not one of ours, or was given something that only code can make.
    """
    entries: list[str | dict[str, Any]] = []
    for index, policy in enumerate(policies):
        if type(policy) is not POLICIES.get(policy.name) or not isinstance(policy, DecidingPolicy):
            raise ConfigurationError(
                f"policy {policy.name!r} (index {index}) is not one of ours, so that no configuration stands for it"
            )
        if policy.only_in_code:
            raise ConfigurationError(
                f"policy {policy.name!r} (index {index}): its {policy.only_in_code!r} was made in code, so that no "
                "configuration stands for it"
            )
        parameters = {name: value for name, value in policy.config.items() if value is not None}
        entries.append({policy.name: parameters} if parameters else policy.name)
    written = {name: value for name, value in settings.items() if value is not None}
    framing = written.pop("framing", None)
    figures = {name: value for name in _FRAMING if (value := getattr(framing, name, None)) != getattr(_PLAIN, name)}
    return {**written, **({"framing": figures} if framing is not None and figures else {}), "policies": entries}
