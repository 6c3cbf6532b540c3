"""Tools of an agent: typed Python functions, and calls that somebody else runs."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticSerializationError

from otel_assembly._internal.threads import ThreadLimit
from otel_assembly.context import Context
from otel_assembly.errors import ConfigurationError, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Tool:
    """A function that the model may call, with the definition that it is shown.

    Arguments are checked by the function's type hints before it is called. A function that is not async runs in a
    thread, so that several run at once and none holds the event loop up. What it returns is sent as it is where it is
    a text, else as JSON.

    Args:
        function: The function; None for a tool that somebody else runs (then `name` and `parameters` are needed).
        name: Its name for the model; by default the function's.
        description: What the model reads; by default the function's docstring.
        parameters: The JSON schema of its arguments, where type hints do not say it.
        needs_approval: A person has to confirm each call before it runs.
        timeout: Seconds that a call may take, from when it is due; None: as the agent says. A function that is not
            async cannot be stopped: after the time limit it runs on in its thread, and may still take effect. The
            `ToolErrorEvent` says so (`still_running`), and a `ToolFinishedLate` follows if it ends.
        idempotent: Running a call a second time has no further effect, as with a lookup. If the server of a session
            dies while a call runs, its successor runs the call again only if this is True
            (see `otel_assembly.sessions.serve`).

    Raises:
        ConfigurationError: It cannot be called by name, its type hints have no JSON schema, or the name is none that
            providers take.
    """

    __slots__ = (
        "_arguments",
        "_context_name",
        "_fields",
        "description",
        "function",
        "idempotent",
        "is_async",
        "name",
        "needs_approval",
        "parameters",
        "timeout",
    )

    def __init__(
        self,
        function: Callable[..., Any] | None,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        needs_approval: bool = False,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> None:
        if function is not None and not callable(function):
            raise ConfigurationError(f"a tool must be a function, not of type {type(function).__name__}")
        if function is None and (name is None or parameters is None):
            raise ConfigurationError("a tool that somebody else runs needs a name and parameters")
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        if _NAME.fullmatch(self.name) is None:
            raise ConfigurationError(
                f"{self.name!r} is no name of a tool: providers take letters, digits, '_' and '-'; give Tool(…, name=…)"
            )
        if timeout is not None and not timeout > 0:
            raise ConfigurationError(f"the timeout of tool {self.name!r} must be above 0 s, not {timeout}")
        #: Whether its function is async; one that is not runs in a thread, which nothing can stop.
        self.is_async = function is not None and is_async(function)
        self.description = description or (inspect.getdoc(function) if function is not None else None) or ""
        self._arguments: type[BaseModel] | None = None
        self._context_name = ""
        if function is not None and parameters is None:
            self._arguments, self._context_name = _arguments_of(function, self.name)
        fields = self._arguments.model_fields if self._arguments is not None else {}
        #: What the arguments are called, by the fields that they are read into.
        self._fields = {name: str(field.alias) for name, field in fields.items()}
        self.parameters = dict(parameters) if parameters is not None else _schema(self._arguments, self.name)
        self.needs_approval = needs_approval
        self.timeout = timeout
        self.idempotent = idempotent

    @property
    def external(self) -> bool:
        """Whether somebody else runs it."""
        return self.function is None

    @property
    def definition(self) -> dict[str, Any]:
        """What the model is shown, as OpenAI's Chat Completions takes it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def read(self, arguments: str) -> dict[str, Any]:
        """The arguments that a model wrote, by name, as the function takes them.

        Raises:
            ToolError: They are no JSON object, or not of the types that the function asks for.
        """
        try:
            if self._arguments is None:
                return _OBJECT.validate_json(arguments or "{}")
            given = self._arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            raise ToolError(self.name, f"cannot take these arguments: {said_of(error)}") from error
        named = given.model_fields_set
        return {alias: getattr(given, name) for name, alias in self._fields.items() if name in named}

    async def run(
        self,
        arguments: Mapping[str, Any],
        context: Context,
        before: Callable[[], None],
        *,
        threads: ThreadLimit | None = None,
        on_late: Callable[[BaseException | None], None] | None = None,
    ) -> str:
        """Call it, and give what the model reads of what it returns.

        Args:
            arguments: By name.
            context: What an argument of this type is given; the model is not shown that argument.
            before: Called where the tool runs, just before it does; what it raises keeps the tool from running.
            threads: Runs a function that is not async; without it, a thread of its own does.
            on_late: Called if such a function ends after this call was cancelled, with the exception that it raised.

        Raises:
            ToolError: It returned what has no JSON form. What it raises itself comes through.
        """
        function = self.function
        if function is None:
            raise ToolError(self.name, "is run by somebody else; give its result to the agent")
        arguments = {**arguments, self._context_name: context} if self._context_name else arguments
        if self.is_async:
            before()
            returned = await function(**arguments)
        else:

            def work() -> Any:
                before()
                return function(**arguments)

            returned = await (threads or ThreadLimit("tool", 1)).run(work, on_late=on_late)
            if inspect.isawaitable(returned):
                returned = await returned
        return self._text(returned)

    def _text(self, returned: Any) -> str:
        if isinstance(returned, str):
            return returned
        try:
            return TypeAdapter(type(returned)).dump_json(returned).decode()
        except (PydanticSerializationError, PydanticUserError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise ToolError(
                self.name, f"returned a {type(returned).__name__}, which has no JSON form; return a text"
            ) from error

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


_OBJECT: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(dict[str, Any])


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def tools_by_name(tools: Iterable[Any]) -> dict[str, Tool]:
    """An agent's tools: functions are made tools.

    Raises:
        ConfigurationError: Two have one name, or something cannot be a tool.
    """
    found: dict[str, Tool] = {}
    for one in tools:
        tool = one if isinstance(one, Tool) else Tool(one)
        if tool.name in found:
            raise ConfigurationError(f"two tools are called {tool.name!r}; give one another name: Tool(…, name=…)")
        found[tool.name] = tool
    return found


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], str]:
    """The arguments that a model names, and the one that is given the `Context`, if there is one."""
    context_name = ""
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(
            function if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(f"tool {name!r}: its signature cannot be read ({error}); give parameters") from error
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(signature.parameters.values()):
        if parameter.kind not in _NAMED:
            raise ConfigurationError(
                f"tool {name!r} takes '{parameter}', which no model can name; give every argument a name"
            )
        if hints.get(parameter.name) is Context:
            context_name = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # A model keeps names for itself (``copy``, ``_own``) that an argument may have.
        fields[f"argument_{index}"] = (hints.get(parameter.name, Any), Field(default, alias=parameter.name))
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields), context_name
    except Exception as error:
        raise ConfigurationError(f"the arguments of tool {name!r} have no JSON schema: {error}") from error


def _schema(arguments: type[BaseModel] | None, name: str) -> dict[str, Any]:
    if arguments is None:
        return {"type": "object", "properties": {}}
    try:
        schema = arguments.model_json_schema()
    except PydanticUserError as error:
        raise ConfigurationError(f"the arguments of tool {name!r} have no JSON schema: {error.message}") from error
    for part in (schema, *schema.get("properties", {}).values()):
        part.pop("title", None)
    return {"properties": {}, **schema}


def said_of(error: ValidationError) -> str:
    """What is wrong, for the model that wrote it."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors(include_url=False)
    )
