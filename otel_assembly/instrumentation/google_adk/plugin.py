"""`AssemblyPlugin`: a plugin for Google ADK that runs a policy chain before each model call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai.types import Content
from pydantic import PrivateAttr

from otel_assembly.errors import AssemblyError
from otel_assembly.instrumentation.google_adk.calls import CALLS, client_request
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
    """Runs a policy chain before each model call of an app's agents, on the contents of ADK's request.

    Pass it to an app, ``App(plugins=[…, plugin])``, or to a runner, as the last plugin: plugins run in this order, and
    an agent's own ``before_model_callback`` runs after all of them. The session is not changed: a message that a policy
    drops is missing from this request only. Prompts that policies add become part of the system instruction. One plugin
    can serve any number of sessions. Each session is one conversation, with all of its agents.

    A FATAL alert from an observer, or from ``context_of(session).send(…)``, halts the conversation: no model and no
    tool is called after it, and the run raises `HaltedError`. The run also raises `ContextOverflowError` if a budget is
    exceeded by messages that must not be dropped.

    Args:
        policies: The policy chain, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts tokens; by default the model that is called.
        dependencies: Objects that policies need, by type, such as ``{KnowledgeStore: store}`` for the memory policies.
            Either a mapping, or a function, async or not, that returns one; it is called with the `CallbackContext`
            before each assembly.
        variables: Values for policies, by name: a mapping or a function, as for `dependencies`.
        observers: Objects that receive each message once, and each alert. They receive a response before its tools run.
        plugin_name: The plugin's name among the app's plugins.

    Raises:
        ConfigurationError: An argument has the wrong type, or `name` or `model` is passed together with an `Assembler`,
            which has its own.
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
        """Return the context of a session's conversation, to send alerts to it or to halt it with its guard.

        Args:
            session: The `Session` of ADK.
        """
        return self._conversation_of(session).context

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> LlmResponse | None:
        """Assemble the contents and the system instruction of a request.

        ADK replaces exceptions of plugins by its own, so an error is returned as a response that raises it.
        """
        conversation, request = self._conversation_of(callback_context.session), client_request(llm_request)
        prompts = request.prompts or ()
        try:
            name, tools = callback_context.agent_name, schemas_of(llm_request)
            agent = callback_context._invocation_context.agent  # noqa: SLF001  # has no public name
            model = getattr(agent, "canonical_model", None)
            async with conversation.turn(name, llm_request.model, tools, model, NO_NAMES):
                await conversation.show_events(callback_context.session.events)
                assembly = await conversation.assemble(callback_context, prompts, request.messages)
        except Exception as error:  # noqa: BLE001  # the run raises it
            return _RaisingResponse.of(error)
        llm_request.contents = [event for event in assembly.events if isinstance(event, Content)]
        if assembly.prompts != prompts:
            llm_request.config.system_instruction = _SEPARATOR.join(assembly.prompts) or None
        CALLS.replaced_by_plugin(lambda: client_request(llm_request))
        return None

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> LlmResponse | None:
        """Show a complete response to the observers; raise if it contains tool calls and the conversation is halted."""
        conversation = self._conversation_of(callback_context.session)
        if llm_response.content is None or llm_response.partial:
            return None
        await conversation.show_response(llm_response.content)
        try:
            conversation.context.guard.check()
        except AssemblyError as error:
            return _RaisingResponse.of(error) if llm_response.get_function_calls() else None
        return None

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> dict[str, Any] | None:
        """Return an error in place of the tool's result if the conversation is halted."""
        halt = self._conversation_of(tool_context.session).context.guard.halt
        return None if halt is None else {"error": f"Not called: {halt.reason}"}

    def _begin(self, conversation_id: str | None) -> _Conversation:
        # The key of a conversation ends with the session's id, see `invoking_agent_of`.
        return _Conversation(self, "google_adk", (conversation_id or "").rpartition("\0")[2])

    def _conversation_of(self, session: Any) -> _Conversation:
        return self._conversation(invoking_agent_of(session).conversation)


class _Conversation(PluginConversation):
    """The conversation of a session. Observers receive each event once, and a response before ADK makes it an event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shown_ids: set[str] = set()
        #: Responses that observers received, until their events appear in the session.
        self._shown_responses: list[Content] = []

    async def show_events(self, events: Sequence[Any]) -> None:
        """Show the observers the events of the session that are new to them."""
        for event in [event for event in events if event.id not in self._shown_ids]:
            self._shown_ids.add(event.id)
            responses = (response for response in self._shown_responses if same_content(response, event.content))
            response = next(responses, None)
            if response is not None:
                self._shown_responses.remove(response)
            elif event.content is not None and event.content.parts:
                await self.stream.show(event.content)

    async def show_response(self, content: Content) -> None:
        """Show the observers a response of a model."""
        self._shown_responses.append(content)
        await self.stream.show(content)


class _RaisingResponse(LlmResponse):
    """A response that raises an error when ADK tests its truth value.

    ADK replaces an exception that a plugin raises by another one, which would hide the original from the program.
    """

    _error: Exception = PrivateAttr()

    @classmethod
    def of(cls, error: Exception) -> _RaisingResponse:
        """Return a response that raises this error."""
        response = cls()
        response._error = error
        return response

    def __bool__(self) -> bool:
        raise self._error
