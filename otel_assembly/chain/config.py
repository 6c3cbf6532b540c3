"""Read and write chains of policies: a YAML or JSON file, a mapping, or one line for the command line.

A chain lists built-in policies by name, and other policies by import path: ``package.module:Class``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from enum import Enum
from functools import lru_cache, reduce
from importlib import import_module
from inspect import Parameter
from os import PathLike, fspath
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from otel_assembly._internal.arguments import LARGEST_INTEGER, OnError, OnHalt  # pydantic needs them at run time
from otel_assembly._internal.unique_keys import RepeatedKeyError, read_json, read_yaml
from otel_assembly.errors import ConfigurationError, UnknownNameError
from otel_assembly.policies import POLICIES, DecidingPolicy
from otel_assembly.policies.base import CONFIG_TYPES, parameters_of
from otel_assembly.tokens import MessageFraming

if TYPE_CHECKING:
    from otel_assembly.policies import AssemblyPolicy


_PLAIN: Final = MessageFraming()
_FRAMING: Final = tuple(field.name for field in dataclass_fields(MessageFraming))


class Chain(NamedTuple):
    """A chain and the assembler's other settings."""

    policies: list[AssemblyPolicy]
    settings: dict[str, Any]


class _ChainForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = None
    model: str | None = None
    model_window: int | None = Field(default=None, ge=1, le=LARGEST_INTEGER)
    on_policy_error: OnError = "raise"
    on_halt: OnHalt = "raise"
    strict: bool = False
    framing: dict[str, Any] | None = None
    policies: list[Any] = Field(default_factory=list)


#: A function that returns default parameters for a policy class; parameters in the chain's entry override them.
Defaults: TypeAlias = Callable[[type], Mapping[str, Any] | None]


def chain_from_config(config: Mapping[str, Any] | str | PathLike[str], defaults: Defaults | None = None) -> Chain:
    """Read a chain from a mapping or a file.

    Raises:
        ConfigurationError: The chain is invalid. The message names the place, the problem and the expected value.
    """
    if isinstance(config, Mapping):
        return _chain(config, "config", defaults)
    path = fspath(config)
    return _chain(_read_file(path), path, defaults)


def _read_file(path: str) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{path}: cannot be read: {why}") from error
    try:
        return read_json(text) if path.lower().endswith(".json") else read_yaml(text)
    except RepeatedKeyError as error:
        raise ConfigurationError(f"{path}:{error.line}: the key {error.key!r} occurs twice, expected once") from error
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else path
        raise ConfigurationError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'malformed'}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error


def _chain(form: Any, where: str, defaults: Defaults | None) -> Chain:
    if not isinstance(form, Mapping):
        raise ConfigurationError(f"{where}: expected a mapping with 'policies', found {type(form).__name__}")
    _check_names("setting", form, _ChainForm.model_fields, where)
    try:
        read = _ChainForm.model_validate(dict(form))
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {_first_problem(error)}") from error
    policies = [_entry(entry, f"{where}: policies[{index}]", defaults) for index, entry in enumerate(read.policies)]
    settings = read.model_dump(exclude={"policies", "framing"})
    return Chain(policies, {**settings, "framing": _framing(read.framing or {}, where)})


def _check_names(kind: str, names: Iterable[Any], known: Iterable[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigurationError(f"{where}: {UnknownNameError(kind, str(name), known)}")


def _framing(form: Mapping[str, Any], where: str) -> MessageFraming:
    _check_names("figure", form, _FRAMING, f"{where}: framing")
    try:
        return MessageFraming(**form)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _entry(entry: Any, where: str, defaults: Defaults | None) -> AssemblyPolicy:
    if isinstance(entry, str):
        entry = {entry: None}
    if not isinstance(entry, Mapping):
        raise ConfigurationError(f"{where}: expected a policy's name, or one with its parameters, found {entry!r}")
    if len(entry) != 1:
        raise ConfigurationError(f"{where}: expected one policy name with its parameters, found {len(entry)} keys")
    ((name, parameters),) = entry.items()
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ConfigurationError(f"{where}.{name}: expected a mapping of parameters, found {parameters!r}")
    policy = policy_class(str(name), where)
    filled = {**((defaults(policy) if defaults is not None else None) or {}), **(parameters or {})}
    return policy_of(policy, filled, where, str(name))


def policy_class(name: str, where: str) -> type[AssemblyPolicy]:
    """Return the class of a policy: a built-in one by name, any other by import path, ``package.module:Class``."""
    builtin = POLICIES.get(name)
    if builtin is not None:
        return builtin
    module, colon, path = name.partition(":")
    if not colon:
        raise ConfigurationError(f"{where}: {UnknownNameError('policy', name, POLICIES)}")
    try:
        target: Any = reduce(getattr, path.split("."), import_module(module))
    except Exception as error:  # an import runs the module's code, which can raise any exception
        raise ConfigurationError(f"{where}: {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(target, type) or not callable(getattr(target, "apply", None)):
        raise ConfigurationError(f"{where}: {name} is no policy's class: it needs a 'name' and a method 'apply'")
    return target


def policy_of(policy: type[AssemblyPolicy], parameters: Mapping[str, Any], where: str, name: str) -> AssemblyPolicy:
    """Create a policy of a class; `ConfigurationError` if a parameter is unknown, missing or of another type."""
    model = _parameter_model(policy)
    if parameters and not model.model_fields:
        raise ConfigurationError(f"{where}.{name}: takes no parameters, found {next(iter(parameters))!r}")
    _check_names("parameter", parameters, model.model_fields, f"{where}.{name}")
    try:
        checked = model.model_validate(parameters)
        return policy(**{field: getattr(checked, field) for field in checked.model_fields_set})
    except ValidationError as error:
        raise ConfigurationError(f"{where}.{name}.{_first_problem(error)}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


@lru_cache(maxsize=512)
def _parameter_model(policy: type) -> type[BaseModel]:
    """Return a model with the parameters of a policy's constructor."""
    fields: dict[str, Any] = {
        name: (_config_type(hint), ... if default is Parameter.empty else default)
        for name, (hint, default) in parameters_of(policy).items()
    }
    return create_model(policy.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)


def _config_type(hint: Any) -> Any:
    """Return a parameter's type if a file can express all its values; else `Any`, and the policy checks the value."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return hint if all(member in CONFIG_TYPES or get_origin(member) is Literal for member in members) else Any


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "value"
    return f"{place}: {first['msg']}"


def chain_from_spec(spec: str, defaults: Defaults | None = None) -> list[AssemblyPolicy]:
    """Read a chain on one line: ``conversation,sliding_window:max_events=50:stride=10,token_budget:max_tokens=8000``.

    Raises:
        ConfigurationError: The chain is invalid. The message names the policy, the problem and the expected value.
    """
    policies: list[AssemblyPolicy] = []
    for index, part in enumerate(spec.split(",")):
        name, *settings = (piece.strip() for piece in part.split(":"))
        if settings and name not in POLICIES and "=" not in settings[0]:
            name = f"{name}:{settings.pop(0)}"  # an import path
        where = f"policies[{index}]"
        if not name:
            raise ConfigurationError(f"{where}: empty; expected policies by name, separated by commas")
        parameters: dict[str, Any] = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals or not key:
                raise ConfigurationError(f"{where}.{name}: expected parameter=value, found {setting!r}")
            if key.strip() in parameters:
                raise ConfigurationError(f"{where}.{name}: the parameter {key.strip()!r} occurs twice, expected once")
            try:
                parameters[key.strip()] = yaml.safe_load(value)
            except (yaml.YAMLError, ValueError) as error:
                raise ConfigurationError(f"{where}.{name}.{key.strip()}: cannot be read: {value!r}") from error
        policies.append(_entry({name: parameters}, where, defaults))
    return policies


def chain_to_config(policies: Sequence[AssemblyPolicy], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping from which `chain_from_config` creates equal policies and settings.

    Raises:
        ConfigurationError: A policy's class cannot be imported, its `config` lacks a setting, or it has an argument
            that only code can create, such as a function.
    """
    entries = [_entry_of(policy, f"policy {policy.name!r} (index {index})") for index, policy in enumerate(policies)]
    written = {name: value for name, value in settings.items() if value is not None}
    framing = written.pop("framing", None)
    figures = {name: value for name in _FRAMING if (value := getattr(framing, name, None)) != getattr(_PLAIN, name)}
    return {**written, **({"framing": figures} if framing is not None and figures else {}), "policies": entries}


def _entry_of(policy: AssemblyPolicy, where: str) -> str | dict[str, Any]:
    """Return the entry from which `_entry` creates a policy with the same settings."""
    name = policy.name if type(policy) is POLICIES.get(policy.name) else _import_path(type(policy))
    if name is None:
        raise ConfigurationError(
            f"{where} is not a built-in policy, and its class has no import path (package.module:Class), so that it "
            "cannot be written to a configuration"
        )
    in_code = getattr(policy, "only_in_code", "")
    if in_code:
        raise ConfigurationError(
            f"{where}: its {in_code!r} is an object of the program, which no configuration can contain"
        )
    config = getattr(policy, "config", None) or {}
    parameters = parameters_of(type(policy))
    decides = isinstance(policy, DecidingPolicy)
    # For a `DecidingPolicy`, `only_in_code` names the optional settings that `config` cannot contain.
    required = [key for key, (_, default) in parameters.items() if not decides or default is Parameter.empty]
    missing = [key for key in required if key not in config]
    if missing:
        raise ConfigurationError(
            f"{where}: its 'config' lacks {missing[0]!r}, so that it cannot be written to a configuration"
        )
    given = {key: (config[key], default) for key, (_, default) in parameters.items() if key in config}
    values = {key: value for key, (value, default) in given.items() if value is not None or default is not None}
    settings = {key: value.value if isinstance(value, Enum) else value for key, value in values.items()}
    return {name: settings} if settings else name


def _import_path(policy: type) -> str | None:
    """Return the import path of a class; None if it cannot be imported, as a class in a function or a script."""
    try:
        found: Any = reduce(getattr, policy.__qualname__.split("."), sys.modules[policy.__module__])
    except (KeyError, AttributeError):
        return None
    return f"{policy.__module__}:{policy.__qualname__}" if found is policy and policy.__module__ != "__main__" else None
