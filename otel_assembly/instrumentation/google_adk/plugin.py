"""`AssemblyPlugin`: a chain of our policies as a plugin of Google ADK's, on its own contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai.types import Content
from pydantic import PrivateAttr

from otel_assembly.errors import AssemblyError
from otel_assembly.instrumentation.google_adk.calls import CALLS, given
from otel_assembly.instrumentation.google_adk.contents import invoking_agent_of
from otel_assembly.instrumentation.google_adk.messages import schemas_of
from otel_assembly.instrumentation.message_alignment import same_content
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation
from otel_assembly.messages.provider_rules import NO_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.plugin import Given
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer

_SEPARATOR: Final = "\n\n"


class AssemblyPlugin(Plugin["_Conversation"], BasePlugin):
    """Our policies before each model call of an app's agents: Gemini's contents go in and come out, the very objects.

    It is given to an app, ``App(plugins=[…, plugin])``, or to a runner, behind the other plugins: those in front of it
    are asked first, and what an agent's own ``before_model_callback`` does comes after all of them. The session is left
    alone: what a policy drops is out of this request, and still among the session's events. What policies add to the
    prompts is added to the system instruction. One object may serve any number of sessions, each of which is one
    conversation, whichever agents speak in it.

    A FATAL alert, of an observer, or sent with ``context_of(session).send(…)``, halts the conversation: no model and no
    tool is called any more, and the run raises `HaltedError`. `ContextOverflowError` of a budget that cannot hold goes
    through to whoever runs the agent as well.

    Args:
        policies: The chain, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts; by default the one that is called.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}`` for the memory policies: a
            mapping, or a function of the `CallbackContext` that returns one, async or not, called before each assembly.
        variables: Values for policies, by name; likewise.
        observers: Shown every message once, a response as soon as it is there, before its tools run; and every alert.
        plugin_name: Its name among the app's plugins.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
        plugin_name: str = "otel_assembly",
    ) -> None:
        Plugin.__init__(
            self, policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )
        BasePlugin.__init__(self, plugin_name)

    def context_of(self, session: Any) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            session: Its `Session`.
        """
        return self._of(session).context

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> LlmResponse | None:
        """Work out what this request's model gets to see; what cannot be, whoever runs the agent is told.

        Raises:
            PolicyFailedError: A policy raised.
        """
        conversation, sent = self._of(callback_context.session), given(llm_request)
        prompts = sent.prompts or ()
        try:
            name, tools = callback_context.agent_name, schemas_of(llm_request)
            agent = callback_context._invocation_context.agent  # noqa: SLF001  # nothing else gives it
            model = getattr(agent, "canonical_model", None)
            async with conversation.turn(name, llm_request.model, tools, model, NO_NAMES):
                await conversation.read(callback_context.session.events)
                assembly = await conversation.assemble(callback_context, prompts, sent.messages)
        except Exception as error:  # noqa: BLE001  # it goes through to whoever runs the agent
            return _Raises.when_asked(error)
        llm_request.contents = [event for event in assembly.events if isinstance(event, Content)]
        if assembly.prompts != prompts:
            llm_request.config.system_instruction = _SEPARATOR.join(assembly.prompts) or None
        CALLS.replaced_by_plugin(lambda: given(llm_request))
        return None

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> LlmResponse | None:
        """Show the observers what the model has answered; of an answer that halts the conversation nothing is done."""
        conversation = self._of(callback_context.session)
        if llm_response.content is None or llm_response.partial:
            return None
        await conversation.answered(llm_response.content)
        try:
            conversation.context.guard.check()
        except AssemblyError as error:
            return _Raises.when_asked(error) if llm_response.get_function_calls() else None
        return None

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> dict[str, Any] | None:
        """Call no tool once the conversation is halted."""
        halt = self._of(tool_context.session).context.guard.halt
        return None if halt is None else {"error": f"Not called: {halt.reason}"}

    def _begin(self, conversation_id: str | None) -> _Conversation:
        return _Conversation(self, "google_adk", (conversation_id or "").rpartition("\0")[2])

    def _of(self, session: Any) -> _Conversation:
        return self._conversation(invoking_agent_of(session).conversation)


class _Conversation(PluginConversation):
    """A session, whose events are shown by their ids; a response, before it is an event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known: set[str] = set()
        self._answers: list[Content] = []

    async def read(self, events: Sequence[Any]) -> None:
        """Show the observers what the session has that they have not seen."""
        for event in [event for event in events if event.id not in self._known]:
            self._known.add(event.id)
            shown = next((one for one in self._answers if same_content(one, event.content)), None)
            if shown is not None:
                self._answers.remove(shown)
            elif event.content is not None and event.content.parts:
                await self.stream.show(event.content)

    async def answered(self, content: Content) -> None:
        """Show them what a model has answered."""
        self._answers.append(content)
        await self.stream.show(content)


class _Raises(LlmResponse):
    """No response: it raises an error as ADK asks whether there is one, for what a plugin raises ADK replaces."""

    _error: Exception = PrivateAttr()

    @classmethod
    def when_asked(cls, error: Exception) -> _Raises:
        """Made for an error."""
        made = cls()
        made._error = error
        return made

    def __bool__(self) -> bool:
        raise self._error
