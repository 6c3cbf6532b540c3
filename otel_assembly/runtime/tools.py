"""`Tool`: a typed Python function that an agent runs, or the declaration of a tool that runs outside the agent."""

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
_NAMED_KINDS: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Tool:
    """A function that the model may call, with its definition for the model.

    Arguments are validated against the function's type hints before the call. A synchronous function runs in a thread,
    so that it does not block the event loop. A returned string is sent to the model unchanged; other values are
    serialized as JSON.

    Args:
        function: The function. None declares an external tool, which runs outside the agent; `name` and `parameters`
            are then required.
        name: The tool's name for the model; by default the function's name.
        description: The tool's description for the model; by default the function's docstring.
        parameters: The JSON schema of the arguments; by default derived from the type hints.
        needs_approval: True if a person must approve each call before it runs.
        timeout: The time limit of a call in seconds, including the wait for a free thread; None: the agent's limit. A
            synchronous function cannot be stopped: after the limit it continues in its thread and may still take
            effect. The result is then a `ToolErrorEvent` with `still_running`, and a `ToolFinishedLate` is sent when
            the function ends.
        idempotent: True if running a call twice has the same effect as running it once, as with a lookup. If the
            process that serves a session dies during a call, another process repeats the call only if this is True
            (see `otel_assembly.sessions.serve`).

    Raises:
        ConfigurationError: The function has positional-only or variable arguments, the type hints have no JSON schema,
            or providers do not accept the tool's name.
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
            raise ConfigurationError("an external tool (function=None) needs a name and parameters")
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        if _NAME.fullmatch(self.name) is None:
            raise ConfigurationError(
                f"{self.name!r} is not a valid tool name: use letters, digits, '_' and '-', or pass Tool(…, name=…)"
            )
        if timeout is not None and not timeout > 0:
            raise ConfigurationError(f"the timeout of tool {self.name!r} must be above 0 s, not {timeout}")
        #: True if the function is async. A synchronous function runs in a thread, which cannot be stopped.
        self.is_async = function is not None and is_async(function)
        self.description = description or (inspect.getdoc(function) if function is not None else None) or ""
        self._arguments: type[BaseModel] | None = None
        self._context_name = ""
        if function is not None and parameters is None:
            self._arguments, self._context_name = _arguments_of(function, self.name)
        fields = self._arguments.model_fields if self._arguments is not None else {}
        #: Argument names by the field names of the generated pydantic model.
        self._fields = {name: str(field.alias) for name, field in fields.items()}
        self.parameters = dict(parameters) if parameters is not None else _schema(self._arguments, self.name)
        self.needs_approval = needs_approval
        self.timeout = timeout
        self.idempotent = idempotent

    @property
    def external(self) -> bool:
        """True if the tool runs outside the agent."""
        return self.function is None

    @property
    def definition(self) -> dict[str, Any]:
        """The tool's definition for the model, in the form of OpenAI's Chat Completions."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def read(self, arguments: str) -> dict[str, Any]:
        """Parse and validate a call's arguments; return them by name.

        Raises:
            ToolError: The text is not a JSON object, or a value does not match the function's type hints.
        """
        try:
            if self._arguments is None:
                return _JSON_OBJECT.validate_json(arguments or "{}")
            values = self._arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            raise ToolError(self.name, f"cannot take these arguments: {describe_validation_error(error)}") from error
        given_fields = values.model_fields_set
        return {alias: getattr(values, name) for name, alias in self._fields.items() if name in given_fields}

    async def run(
        self,
        arguments: Mapping[str, Any],
        context: Context,
        before: Callable[[], None],
        *,
        threads: ThreadLimit | None = None,
        on_late: Callable[[BaseException | None], None] | None = None,
    ) -> str:
        """Call the function and return its result as text for the model.

        Args:
            arguments: The arguments by name.
            context: The value of the function's argument of type `Context`, which is hidden from the model.
            before: Called in the tool's task or thread, just before the function. If `before` raises an error, the
                function is not called.
            threads: The threads that run synchronous functions; by default each call starts a thread.
            on_late: Called if a synchronous function ends after this call was cancelled. Its argument is the
                function's exception, or None.

        Raises:
            ToolError: The function's result cannot be serialized as JSON. Errors of the function are not wrapped.
        """
        function = self.function
        if function is None:
            raise ToolError(self.name, "runs outside the agent; give its result to the agent")
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


_JSON_OBJECT: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(dict[str, Any])


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if the callable is a coroutine function, or an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def tools_by_name(tools: Iterable[Any]) -> dict[str, Tool]:
    """Return an agent's tools by name; functions are converted to tools.

    Raises:
        ConfigurationError: Two tools have the same name, or an entry cannot be converted to a tool.
    """
    by_name: dict[str, Tool] = {}
    for entry in tools:
        tool = entry if isinstance(entry, Tool) else Tool(entry)
        if tool.name in by_name:
            raise ConfigurationError(f"two tools are called {tool.name!r}; rename one of them: Tool(…, name=…)")
        by_name[tool.name] = tool
    return by_name


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], str]:
    """Create a pydantic model of a function's arguments.

    Returns:
        The pydantic model, and the name of the argument of type `Context`, which is not part of it; ``""`` if there
        is none.
    """
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
        if parameter.kind not in _NAMED_KINDS:
            raise ConfigurationError(
                f"tool {name!r} takes '{parameter}', which a model cannot pass by name; give every argument a name"
            )
        if hints.get(parameter.name) is Context:
            context_name = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # Pydantic reserves names that an argument may have (``copy``, ``_own``), so fields are numbered.
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


def describe_validation_error(error: ValidationError) -> str:
    """Return the problems of a pydantic error as one line of text for the model."""
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}"
        for problem in error.errors(include_url=False)
    )
