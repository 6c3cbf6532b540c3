"""The base of the plug-ins, which run a chain of policies inside a framework before each model call.

`Plugin` has the assembler and the conversations. For its framework, a plug-in implements `_read_input` and
`_write_output`. `PluginConversation` has the context of one conversation and runs its assemblies.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypedDict, TypeVar, cast

from otel_assembly._internal.arguments import instance, objects
from otel_assembly._internal.fork_safety import new_lock
from otel_assembly._internal.registry import Registry
from otel_assembly.assembler import Assembler
from otel_assembly.context import Context
from otel_assembly.conversation_state import is_alert
from otel_assembly.errors import ConfigurationError, HaltedError
from otel_assembly.history import History
from otel_assembly.instrumentation.context_variables import CALL, PLUGIN_TURNS
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.reductions import plugin_scope
from otel_assembly.messages.provider_rules import provider_of_client, rules_of_client
from otel_assembly.policies import AlertPolicy
from otel_assembly.runtime import Stream, attach
from otel_assembly.runtime.observers import checked_observers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


#: The most conversations that a plug-in remembers by their ids; the least recently used one is forgotten first.
CONVERSATIONS: Final = 1_000

C = TypeVar("C", bound="PluginConversation")

#: A plug-in's `dependencies` or `variables`: a mapping, or a function that returns one for each turn.
Given: TypeAlias = Mapping[Any, Any] | Callable[[Any], Any] | None


class PluginSettings(TypedDict, total=False):
    """The arguments that all plug-ins have in addition to their own; `Plugin` describes them."""

    name: str | None
    model: str | None
    dependencies: Given
    variables: Given
    observers: Sequence[Observer]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInput:
    """The input of one assembly, as a plug-in reads it from its framework.

    Attributes:
        framework_object: The object that the user's functions for dependencies and variables get, such as a context.
        messages: The framework's messages, or their `History`.
        agent_name: The name of the invoking agent.
        client: The model's client, whose class determines the provider.
        client_rules: What the client adds to messages; by default determined by the client's class.
        shown: All messages of the conversation for the observers, such as those of the framework's state if middleware
            can change `messages`; by default `messages`.
        dependencies: The framework's own dependencies; the user's have precedence.
        variables: The framework's own variables; the user's have precedence.
    """

    framework_object: Any
    prompts: list[str]
    messages: Sequence[Any]
    agent_name: str | None = None
    model: str | None = None
    tools: Iterable[Mapping[str, Any]] = ()
    client: object = None
    client_rules: ClientRules | None = None
    shown: Sequence[Any] | None = None
    dependencies: Mapping[Any, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)


def _checked(setting: str, value: Given) -> Given:
    """Return the `dependencies` or `variables` of a plug-in, or raise a `ConfigurationError` if they are invalid."""
    is_valid = value is None or isinstance(value, Mapping) or callable(value)
    if is_valid and not isinstance(value, type):
        if setting == "dependencies" and isinstance(value, Mapping):
            objects(value)
        return value
    keys = "objects by their type" if setting == "dependencies" else "values by their name"
    raise ConfigurationError(f"{setting} must be a mapping of {keys}, or a function that returns one, not {value!r}")


async def _mapping_for(setting: str, value: Given, framework_object: Any) -> Mapping[Any, Any]:
    """Return the `dependencies` or `variables` of one turn: the mapping, or the result of the user's function."""
    if value is None or isinstance(value, Mapping):
        return value or {}
    result = value(framework_object)
    if inspect.isawaitable(result):
        result = await result
    if not isinstance(result, Mapping):
        raise ConfigurationError(f"the function for {setting} must return a mapping, not {type(result).__name__}")
    return result


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine from synchronous code in a new event loop, and return its result.

    If a loop is running in this thread, the new one runs in another thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_in_new_loop(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, _run_in_new_loop, coroutine).result()


def _run_in_new_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    # Not `asyncio.run`, which would set the thread's current event loop to None: the program may have set one.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


#: The most alerts of one conversation that are kept for the model; the oldest is dropped first.
ALERTS: Final = 100
#: The number of the newest events, shown to observers, that are recognized if the framework passes them again.
RECOGNIZED: Final = 8


class PluginStream(Stream):
    """A stream of a plug-in's conversation, which keeps the alerts that were sent to it, so that a model can get them.

    It records no events, because the framework keeps the messages itself.
    """

    def __init__(self) -> None:
        super().__init__(records=False)
        self._lock = new_lock()
        #: Each alert with its index in the conversation; None until the next assembly.
        self._alerts: deque[tuple[int | None, Any]] = deque(maxlen=ALERTS)

    async def show(self, event: Any) -> None:
        """Show observers a message of the framework."""
        await super()._record(event)

    async def send(self, event: Any) -> None:
        """Show an event to the observers, and keep it if it is an alert."""
        if is_alert(event):
            with self._lock:
                self._alerts.append((None, event))
        await super().send(event)

    def with_alerts(self, events: Sequence[Any]) -> Sequence[Any]:
        """Return a conversation's events with the alerts inserted.

        An alert keeps the position that it had in its first assembly, which is the end of the conversation then.
        """
        if not self._alerts:
            return events
        result = list(events)
        with self._lock:
            alerts = [(len(result) if index is None else index, alert) for index, alert in self._alerts]
            self._alerts = deque(alerts, maxlen=ALERTS)
        for index, alert in reversed(alerts):  # from the end, so that the other indexes stay valid
            result.insert(min(index, len(events)), alert)
        return result


class PluginConversation:
    """The context, stream and turns of one conversation of a plug-in.

    Args:
        conversation_id: The conversation's id; None if the framework has none.
        same: Returns whether two objects are the same event; by default only identical objects are.
        inserts_alerts: Whether the alerts that were sent to the stream are inserted into the events of each
            assembly, so that policies can read them. None: only if the chain has an `AlertPolicy`.

    Attributes:
        has_alert_policy: Whether the chain has an `AlertPolicy`, which delivers alerts to the model and halts the
            conversation for a FATAL one.
    """

    def __init__(
        self,
        plugin: Plugin[Any],
        framework: str,
        conversation_id: str | None,
        *,
        stream: PluginStream | None = None,
        same: Callable[[Any, Any], bool] | None = None,
        inserts_alerts: bool | None = None,
    ) -> None:
        self._plugin = plugin
        self.stream = PluginStream() if stream is None else stream
        self.context = Context(conversation_id=conversation_id, framework=framework, stream=self.stream)
        attach(self.stream, plugin._observers, self.context)  # noqa: SLF001  # a plug-in and its conversation
        self.has_alert_policy = any(isinstance(policy, AlertPolicy) for policy in plugin.assembler.policies)
        self._inserts_alerts = self.has_alert_policy if inserts_alerts is None else inserts_alerts
        self._same = same
        self._shown: deque[Any] = deque(maxlen=RECOGNIZED)
        #: The event loop of the last turn, and the lock for turns in it; a lock cannot be used in another loop.
        self._turn_lock: tuple[object, asyncio.Lock] | None = None

    @asynccontextmanager
    async def turn(self, turn_input: TurnInput) -> AsyncGenerator[None, None]:
        """Run one turn in this block: set the agent, model and tools of the context, and restore them at its end.

        The turns of a conversation in one event loop run one after another. A turn that a policy or an observer begins
        inside another turn, such as a summarizer's, does not wait for that turn.
        """
        turns, loop, client = PLUGIN_TURNS.get(), asyncio.get_running_loop(), turn_input.client
        if self._turn_lock is None or self._turn_lock[0] is not loop:
            self._turn_lock = loop, asyncio.Lock()
        async with nullcontext() if self in turns else self._turn_lock[1]:
            context = self.context
            before = context.agent_name, context.model, context.tools, context.provider
            context.agent_name, context.model = turn_input.agent_name, turn_input.model
            context.tools = tuple(turn_input.tools)
            context.provider = context.provider or provider_of_client(client)
            rules, context.client = context.client, turn_input.client_rules or rules_of_client(client)
            try:
                with context_value(PLUGIN_TURNS, (*turns, self)):
                    yield
            finally:
                context.provider, context.client = before[-1], rules
                if self in turns:  # the outer turn goes on
                    context.agent_name, context.model, context.tools = before[:-1]

    async def assemble(self, turn_input: TurnInput) -> Assembly:
        """Return the assembly with the prompts and messages to send to the model.

        Raises:
            HaltedError: The conversation is halted, so nothing may be sent.
            ConfigurationError: A function for dependencies or variables did not return a mapping.
        """
        plugin, context, events = self._plugin, self.context, turn_input.messages
        own_dependencies = objects(
            await _mapping_for("dependencies", plugin._dependencies, turn_input.framework_object)  # noqa: SLF001  # as above
        )
        own_variables = await _mapping_for("variables", plugin._variables, turn_input.framework_object)  # noqa: SLF001  # as above
        # New dictionaries, because another turn of this conversation may run in another event loop with the old ones.
        context.dependencies = {**turn_input.dependencies, **own_dependencies}
        # The old variables are kept: a policy may have set one for a later turn.
        context.variables = {**context.variables, **turn_input.variables, **own_variables}
        if self._inserts_alerts:
            events = self.stream.with_alerts(events)
        history = events if isinstance(events, History) else list(events)
        assembly = await plugin.assembler.assemble(turn_input.prompts, history, context)
        if assembly.halt is not None:
            error = HaltedError(assembly.halt.reason, assembly.halt.source)
            error.assembly = assembly
            raise error
        return assembly

    @property
    def refusal(self) -> str | None:
        """The result of each tool call if the conversation is halted; None if tools may be called."""
        halt = self.context.guard.halt
        return None if halt is None else f"Not called: {halt.reason}"

    async def show_response(self, messages: Sequence[Any], *, has_tool_calls: bool) -> None:
        """Show the observers a model's response.

        Raises:
            HaltedError: The conversation is halted, and the response contains tool calls, which must not run.
        """
        await self.show(messages)
        if has_tool_calls:
            self.context.guard.check()

    async def show(self, events: Sequence[Any]) -> None:
        """Show the observers the events after the last one that they were already shown."""
        for event in self._new_events(events):
            self._shown.append(event)
            await self.stream.show(event)

    def _new_events(self, events: Sequence[Any]) -> Sequence[Any]:
        """Return the events after the last one that was already shown; none if there are no observers."""
        if not self._plugin._observers:  # noqa: SLF001  # as above
            return ()
        start = len(events)
        while start and not self._was_shown(events[start - 1]):
            start -= 1
        return events[start:]

    def _was_shown(self, event: Any) -> bool:
        same = self._same
        return any(shown is event or (same is not None and same(shown, event)) for shown in self._shown)


class Plugin(Generic[C]):
    """The base of a plug-in: it has an assembler, and the dependencies and variables of its policies."""

    #: Tells the instrumentation that the plug-in records its own assemblies.
    otel_assembly_plugin: ClassVar[bool] = True

    #: The framework's name in telemetry.
    _framework: ClassVar[str] = ""
    #: The types of the framework's messages; only events of these types are sent to a model.
    _message_types: ClassVar[tuple[type, ...]] = (object,)
    #: The class of the conversations.
    _conversation_type: ClassVar[type[PluginConversation]] = PluginConversation
    #: Whether model calls of policies, such as a summarizer's, are hidden from the framework's instrumentation.
    _hides_model_calls: ClassVar[bool] = False

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Create the plug-in.

        A FATAL alert from an observer, or from ``context_of(…).send(…)``, halts the conversation: no model and no tool
        is called after it, and the run raises `HaltedError`. The run also raises `ContextOverflowError` if a budget is
        exceeded by messages that must not be dropped, and `PolicyFailedError` if a policy raises. The class's
        description names the exceptions to this.

        Args:
            policies: The chain of policies in order, or an `Assembler`.
            name: The assembler's name in telemetry.
            model: The model whose tokenizer counts tokens; by default the model that is called, if its name is known.
            dependencies: Objects that policies need, by their type, such as ``{KnowledgeStore: store}`` for the memory
                policies: a mapping, or a sync or async function that returns one. The function is called before each
                assembly, with the framework's argument of the turn, which the class's description names.
            variables: Values for policies, by their name: a mapping or a function, as for `dependencies`.
            observers: Objects that receive each message once, and each alert. They receive a response before its tools
                run.

        Raises:
            ConfigurationError: An argument has the wrong type, or `name` or `model` is set although `policies` is an
                `Assembler`, which has its own.
        """
        if isinstance(policies, type) and issubclass(policies, Assembler):
            instance("policies", policies)
        if not isinstance(policies, Assembler):
            policies = Assembler(policies, name=name, model=model)
        elif name is not None or model is not None:
            raise ConfigurationError(f"{type(self).__name__} takes its name and model from the Assembler it is given")
        self.assembler = policies
        self._observers = checked_observers(observers)
        self._dependencies = _checked("dependencies", dependencies)
        self._variables = _checked("variables", variables)
        self._conversations: Registry[str, C] = Registry(CONVERSATIONS)
        self._conversations_without_id: IdentityWeakMap[C] = IdentityWeakMap()
        self._initialize()

    def _initialize(self) -> None:
        """Initialize the framework's base class, and attributes of the plug-in's own."""

    def context_of(self, conversation: str) -> Context:
        """Return the context of a conversation: send alerts to it, or halt the conversation by its guard.

        Args:
            conversation: The conversation's id in the framework, which the class's description names.
        """
        return self._conversation(conversation).context

    async def _read_input(self, request: Any) -> TurnInput:
        """Read the input of a model call from the framework's request, which the subclass passes to `_run_policies`."""
        raise NotImplementedError

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        """Return or change the framework's request, so that it has the prompts and messages of the assembly."""
        raise NotImplementedError

    async def _run_policies(self, conversation: PluginConversation, request: Any) -> Any:
        """Run the policies for a request of the framework, and return the result of `_write_output`.

        The errors are those of `PluginConversation.assemble`, and those of the policies.
        """
        call, turn_input = CALL.get(), await self._read_input(request)
        scope = plugin_scope(call.instrumentation, call) if call and self._hides_model_calls else nullcontext()
        async with conversation.turn(turn_input):
            await conversation.show(turn_input.messages if turn_input.shown is None else turn_input.shown)
            with scope:
                assembly = await conversation.assemble(turn_input)
        types = self._message_types
        # The first test is the faster one, and true for almost all events.
        messages = [event for event in assembly.events if type(event) in types or isinstance(event, types)]
        return self._write_output(request, turn_input, list(assembly.prompts), messages)

    @staticmethod
    def _is_same(left: Any, right: Any) -> bool:
        """Return whether two objects are the same event, which the observers receive once; it may be copied."""
        return left is right

    def _begin(self, conversation_id: str | None) -> C:
        """Return a new conversation; the id is None if the framework has none for it."""
        return cast("C", self._conversation_type(self, self._framework, conversation_id, same=self._is_same))

    def _conversation(self, conversation_id: str | None, owner: object = None, *, key: str | None = None) -> C:
        """Return a conversation; create it if it is new.

        Without an id, `owner` identifies the conversation, such as its first message; without an owner, it is always a
        new one. `key` identifies the conversation in this plug-in, if the id does not.
        """
        if conversation_id is None:
            return self._conversations_without_id.get_or_create(owner, lambda _: self._begin(None))
        return self._conversations.of(key or conversation_id, lambda: self._begin(conversation_id))


def record_output(sent: Callable[[], tuple[Sequence[str], Sequence[Any]]]) -> None:
    """Record in the framework's current model call, if it is instrumented, that a plug-in made its input.

    `sent` returns the prompts and messages that the plug-in passes on.
    """
    call = CALL.get()
    if call is not None:
        with call.instrumentation.suppress_errors():
            prompts, messages = sent()
            call.replaced_by_plugin(messages, prompts=prompts)
