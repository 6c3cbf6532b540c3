"""The base of the plug-ins: what their policies work with, their conversations, and one assembly of a conversation."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from otel_assembly._internal.arguments import instance, objects
from otel_assembly._internal.fork_safety import new_lock
from otel_assembly._internal.registry import Registry
from otel_assembly.assembler import Assembler
from otel_assembly.context import Context
from otel_assembly.conversation_state import is_alert
from otel_assembly.errors import ConfigurationError, HaltedError
from otel_assembly.history import History
from otel_assembly.instrumentation.instrumented import context_value
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


#: Conversations of one plug-in that are remembered by an id; beyond it the least recently used begin anew.
CONVERSATIONS: Final = 1_000

C = TypeVar("C")

#: What a user gives a plug-in: for every turn the same, or found for each, by a function of what a turn is handed.
Given: TypeAlias = Mapping[Any, Any] | Callable[[Any], Any] | None


class Plugin(Generic[C]):
    """The base of a plug-in: it has an assembler, and gives its policies what they ask for.

    Args:
        policies: The chain, or an `Assembler`.
        name: Tells assemblers apart, as `Assembler` takes it.
        model: The model whose tokenizer counts, as `Assembler` takes it.
        dependencies: Objects by type, such as a `KnowledgeStore`; or a function, async or not, that returns them. It is
            called before each assembly, with what the framework hands a turn.
        variables: Free values of the application, likewise.
        observers: Watch the conversations.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or one of the others is
            not what it should be.
    """

    #: By this the instrumentation knows that its assemblies are told of already.
    otel_assembly_plugin: ClassVar[bool] = True

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

    def _begin(self, conversation_id: str | None) -> C:
        """A conversation that is first met, or has no id by which it could be met again."""
        raise NotImplementedError

    def _conversation(self, conversation_id: str) -> C:
        """The conversation of this id."""
        return self._conversations.of(conversation_id, lambda: self._begin(conversation_id))


def _checked(setting: str, given: Given) -> Given:
    wanted = given is None or isinstance(given, Mapping) or callable(given)
    if wanted and not isinstance(given, type):
        if setting == "dependencies" and isinstance(given, Mapping):
            objects(given)
        return given
    keys = "objects by their type" if setting == "dependencies" else "values by their name"
    raise ConfigurationError(f"{setting} must be a mapping of {keys}, or a function that returns one, not {given!r}")


async def _of_this_turn(setting: str, given: Given, turn: Any) -> Mapping[Any, Any]:
    if given is None or isinstance(given, Mapping):
        return given or {}
    found = given(turn)
    if inspect.isawaitable(found):
        found = await found
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"the function given as {setting} returned {type(found).__name__}, and no mapping")
    return found


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns, in a loop of its own: the caller's may be running, and must not be replaced."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _in_a_loop(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, _in_a_loop, work).result()


def _in_a_loop(work: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


#: Alerts of one conversation that are held for the model.
ALERTS: Final = 100
#: So many of the newest events that observers were shown are known again.
_KNOWN: Final = 8


class PluginStream(Stream):
    """Where a plug-in shows observers what happens; it keeps no event, for the framework has its messages itself."""

    def __init__(self) -> None:
        super().__init__(records=False)

    async def show(self, event: Any) -> None:
        """Show observers an event of the framework's own."""
        await super()._record(event)


class AlertStream(PluginStream):
    """Keeps alerts for the model."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = new_lock()
        self._alerts: deque[tuple[int | None, Any]] = deque(maxlen=ALERTS)

    async def send(self, event: Any) -> None:
        """Show an event to who watches; an alert is kept as well."""
        if is_alert(event):
            with self._lock:
                self._alerts.append((None, event))
        await super().send(event)

    def among(self, events: Sequence[Any]) -> Sequence[Any]:
        """The events, and among them the alerts: each where the conversation ended when it was first asked for."""
        found = events
        if self._alerts:
            found = list(events)
            with self._lock:
                placed = [(len(found) if place is None else place, alert) for place, alert in self._alerts]
                self._alerts = deque(placed, maxlen=ALERTS)
            for place, alert in reversed(placed):
                found.insert(min(place, len(events)), alert)
        return found


#: The conversations whose turns go on here.
_TURNS: Final[ContextVar[tuple[PluginConversation, ...]]] = ContextVar("otel_assembly_turns", default=())


class PluginConversation:
    """One conversation under one plug-in.

    Args:
        plugin: The plug-in.
        framework: The framework's name, for telemetry.
        conversation_id: The conversation's real id, if it has one.
        stream: Where alerts and halts go; by default they are kept here, for the model.
        same: Whether two objects are the same event, read twice; by default whether they are the same object.
    """

    def __init__(
        self,
        plugin: Plugin[Any],
        framework: str,
        conversation_id: str | None,
        *,
        stream: PluginStream | None = None,
        same: Callable[[Any, Any], bool] | None = None,
    ) -> None:
        self._plugin = plugin
        self.stream: PluginStream = AlertStream() if stream is None else stream
        self.context = Context(conversation_id=conversation_id, framework=framework, stream=self.stream)
        attach(self.stream, plugin._observers, self.context)  # noqa: SLF001  # a plug-in and its conversation
        #: Whether alerts are delivered to the model.
        self.delivers = any(isinstance(policy, AlertPolicy) for policy in plugin.assembler.policies)
        self._same = same
        self._shown: deque[Any] = deque(maxlen=_KNOWN)
        self._in_turn: tuple[object, asyncio.Lock] | None = None

    @asynccontextmanager
    async def turn(
        self,
        agent_name: str | None,
        model: str | None,
        tools: Iterable[Mapping[str, Any]],
        client: object = None,
        client_rules: ClientRules | None = None,
    ) -> AsyncGenerator[None, None]:
        """One turn: the context says who asks, and no other turn of this conversation begins in this event loop.

        A turn that a policy or an observer begins inside of it, such as a summariser's, does not wait for it.

        Args:
            agent_name: Who asks.
            model: Its model's name.
            tools: The schemas of the tools that it offers.
            client: What calls the model, whose class states the provider if the program has not.
            client_rules: What the client adds to messages, if its class does not state that.
        """
        turns, loop = _TURNS.get(), asyncio.get_running_loop()
        if self._in_turn is None or self._in_turn[0] is not loop:
            self._in_turn = loop, asyncio.Lock()
        async with nullcontext() if self in turns else self._in_turn[1]:
            context = self.context
            around = context.agent_name, context.model, context.tools, context.provider
            context.agent_name, context.model, context.tools = agent_name, model, tuple(tools)
            context.provider = context.provider or provider_of_client(client)
            rules, context.client = context.client, client_rules or rules_of_client(client)
            try:
                with context_value(_TURNS, (*turns, self)):
                    yield
            finally:
                context.provider, context.client = around[-1], rules
                if self in turns:
                    context.agent_name, context.model, context.tools = around[:-1]

    async def assemble(
        self,
        turn: Any,
        prompts: Sequence[str],
        events: Sequence[Any],
        *,
        dependencies: Mapping[Any, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Assembly:
        """What is to be sent to the model on this turn.

        Args:
            turn: What the framework hands a turn; a function of the user's is called with it.
            prompts: The system prompts.
            events: The framework's messages, or their `History`. Alerts stand among them where a policy delivers those.
            dependencies: What the framework itself has; what the user has given for the same type is taken instead.
            variables: Likewise.

        Raises:
            HaltedError: Nothing is to be sent, whatever the assembler does with a halt: the conversation is halted.
            ConfigurationError: A function of the user's returned no mapping.
        """
        plugin, context = self._plugin, self.context
        found = objects(await _of_this_turn("dependencies", plugin._dependencies, turn))  # noqa: SLF001  # as above
        values = await _of_this_turn("variables", plugin._variables, turn)  # noqa: SLF001  # as above
        # New ones: an assembly of another turn of this conversation, which runs meanwhile, keeps its own.
        context.dependencies = {**(dependencies or {}), **found}
        # A policy may have put something there for a later turn.
        context.variables = {**context.variables, **(variables or {}), **values}
        if self.delivers and isinstance(self.stream, AlertStream):
            events = self.stream.among(events)
        held = events if isinstance(events, History) else list(events)
        assembly = await plugin.assembler.assemble(prompts, held, context)
        if assembly.halt is not None:
            halted = HaltedError(assembly.halt.reason, assembly.halt.source)
            halted.assembly = assembly
            raise halted
        return assembly

    async def show(self, events: Sequence[Any]) -> None:
        """Show the observers what is new among these events, the last of which are the newest."""
        if not self._plugin._observers:  # noqa: SLF001  # as above
            return
        start = len(events)
        while start and not self._is_known(events[start - 1]):
            start -= 1
        for event in events[start:]:
            self._shown.append(event)
            await self.stream.show(event)

    def _is_known(self, event: Any) -> bool:
        same = self._same
        return any(one is event or (same is not None and same(one, event)) for one in self._shown)
