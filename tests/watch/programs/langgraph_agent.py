"""A LangGraph agent whose node trims its messages: one turn of one thread for each line of standard input."""

import sys

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, convert_to_openai_messages, trim_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)


class ProviderModel(BaseChatModel):
    """A chat model that asks the provider."""

    @property
    def _llm_type(self):
        return "provider"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        body = convert_to_openai_messages(messages)
        answer = client.chat.completions.create(model="gpt-4o", messages=body)
        message = AIMessage(answer.choices[0].message.content)
        return ChatResult(generations=[ChatGeneration(message=message)])


model = ProviderModel()


def answer(state):
    newest = trim_messages(state["messages"], max_tokens=3, token_counter=len, strategy="last", start_on="human")
    return {"messages": [model.invoke(newest)]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
agent = graph.compile(checkpointer=InMemorySaver(), name="clerk")
for line in sys.stdin:
    agent.invoke({"messages": [("user", line.strip())]}, {"configurable": {"thread_id": "ticket-1042"}})
    print("answered", flush=True)
