"""`AssemblyPlugin`: a plugin for Google ADK that runs a policy chain before each model call."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Unpack

from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai.types import Content
from pydantic import PrivateAttr

from otel_assembly.errors import HaltedError
from otel_assembly.instrumentation.google_adk.calls import CALLS, client_request
from otel_assembly.instrumentation.google_adk.contents import invoking_agent_of
from otel_assembly.instrumentation.google_adk.messages import schemas_of
from otel_assembly.instrumentation.message_alignment import same_content
from otel_assembly.instrumentation.plugin import RECOGNIZED, Plugin, PluginConversation, PluginSettings, TurnInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy


class _Conversation(PluginConversation):
    """The conversation of a session. Observers receive each event once, and a response before ADK makes it an event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Responses that observers received, until their events appear in the session. ADK creates no event for a
        #: response that another plugin replaces, so only the newest ones are kept.
        self._responses: deque[Content] = deque(maxlen=RECOGNIZED)

    async def show_response(self, messages: Sequence[Any], *, has_tool_calls: bool) -> None:
        self._responses.extend(messages)
        for content in messages:
            await self.stream.show(content)
        await super().show_response((), has_tool_calls=has_tool_calls)

    async def show(self, events: Sequence[Any]) -> None:
        """Show the observers the contents of the session's events that are new to them."""
        for event in self._new_events(events):
            self._shown.append(event)
            response = next((shown for shown in self._responses if same_content(shown, event.content)), None)
            if response is not None:
                self._responses.remove(response)
            elif event.content is not None and event.content.parts:
                await self.stream.show(event.content)


class _RaisingResponse(LlmResponse):
    """A response that raises an error when ADK tests its truth value: ADK replaces exceptions of plugins by its own."""

    _error: Exception = PrivateAttr()

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def __bool__(self) -> bool:
        raise self._error


class AssemblyPlugin(Plugin[_Conversation], BasePlugin):
    """Runs a policy chain before each model call of an app's agents, on the contents of ADK's request.

    Pass it to an app, ``App(plugins=[…, plugin])``, or to a runner, as the last plugin: plugins run in this order, and
    an agent's own ``before_model_callback`` runs after all of them. The session is not changed: a message that a policy
    drops is missing from this request only. Prompts that policies add become part of the system instruction. Each of
    its sessions is one conversation. Functions for `dependencies` and `variables` get the `CallbackContext`.

    Args:
        plugin_name: The plugin's name among the app's plugins.
        settings: The other arguments of `Plugin`.
    """

    _framework = "google_adk"
    _message_types = (Content,)
    _conversation_type = _Conversation

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        plugin_name: str = "otel_assembly",
        **settings: Unpack[PluginSettings],
    ) -> None:
        Plugin.__init__(self, policies, **settings)
        BasePlugin.__init__(self, plugin_name)

    def context_of(self, session: Any) -> Context:
        """Return the context of the conversation of a `Session`: send alerts to it, or halt it with its guard."""
        return self._conversation_of(session).context

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> LlmResponse | None:
        """Assemble the contents and the system instruction of a request."""
        try:
            await self._run_policies(self._conversation_of(callback_context.session), (callback_context, llm_request))
        except Exception as error:  # noqa: BLE001  # the run raises it
            return _RaisingResponse(error)
        return None

    async def _read_input(self, request: Any) -> TurnInput:
        context, llm_request = request
        sent = client_request(llm_request)
        agent = context._invocation_context.agent  # noqa: SLF001  # has no public name
        return TurnInput(
            framework_object=context,
            prompts=list(sent.prompts or ()),
            messages=sent.messages,
            agent_name=context.agent_name,
            model=llm_request.model,
            tools=schemas_of(llm_request),
            client=getattr(agent, "canonical_model", None),
            client_rules=sent.client,
            shown=context.session.events,
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> None:
        _, llm_request = request
        llm_request.contents = messages
        if prompts != turn_input.prompts:
            llm_request.config.system_instruction = "\n\n".join(prompts) or None
        CALLS.replaced_by_plugin(lambda: client_request(llm_request))

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> LlmResponse | None:
        """Show a complete response to the observers; raise if it contains tool calls and the conversation is halted."""
        content = llm_response.content
        if content is not None and not llm_response.partial:
            conversation, calls = self._conversation_of(callback_context.session), llm_response.get_function_calls()
            try:
                await conversation.show_response([content], has_tool_calls=bool(calls))
            except HaltedError as error:
                return _RaisingResponse(error)
        return None

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> dict[str, Any] | None:
        """Return an error in place of the tool's result if the conversation is halted."""
        refusal = self._conversation_of(tool_context.session).refusal
        return None if refusal is None else {"error": refusal}

    @staticmethod
    def _is_same(left: Any, right: Any) -> bool:
        return bool(left.id == right.id)

    def _conversation_of(self, session: Any) -> _Conversation:
        return self._conversation(session.id, key=invoking_agent_of(session).conversation)
