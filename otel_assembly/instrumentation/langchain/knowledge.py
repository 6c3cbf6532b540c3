"""`GraphKnowledgeStore`: makes the store of a LangGraph agent available to policies as a `KnowledgeStore`."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from langgraph.store.base import BaseStore

from otel_assembly.errors import KnowledgeStoreError
from otel_assembly.knowledge import KnowledgeStore, StoreOfItems

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

#: The default namespace.
NAMESPACE: Final = ("knowledge",)
#: The key in an item's value that contains the text of a file.
CONTENT: Final = "content"
#: The number of items per search request.
_PAGE_SIZE: Final = 100

#: True while the plug-in serves a sync agent. `GraphKnowledgeStore` then calls the store's sync methods, because a
#: store that belongs to another event loop cannot be awaited.
BLOCKING: Final[ContextVar[bool]] = ContextVar("otel_assembly_langchain_blocking", default=False)


class GraphKnowledgeStore(StoreOfItems):
    """A `KnowledgeStore` that stores each file as an item of a LangGraph store, with the text under ``content``.

    For example, ``/memory/working.md`` is the item ``working.md`` in the namespace ``(*namespace, "memory")``. In names
    of directories, ``.`` and ``%`` are written ``%2E`` and ``%25``, because LangGraph allows no dots in namespaces.
    Items without a text are ignored. To list or delete a directory, the store reads all items below it.

    `append` raises an error: LangGraph's stores have no atomic append, so concurrent appends would be lost.

    Args:
        store: Any LangGraph store, such as the `runtime.store` of the agent.
        namespace: The namespace of the root directory, for example ``("users", user_id)`` for one memory per user.

    Raises:
        ConfigurationError: The namespace is empty, or has a label that LangGraph does not allow.
    """

    _identity = "a store of LangGraph's"

    def __init__(self, store: BaseStore, namespace: Sequence[str] = NAMESPACE) -> None:
        self.store = store
        super().__init__(namespace)

    async def _get(self, place: tuple[str, ...], key: str) -> str | None:
        return _text_of(await self._call("get", place, key))

    async def _put(self, place: tuple[str, ...], key: str, text: str) -> None:
        await self._call("put", place, key, {CONTENT: text})

    async def _remove(self, place: tuple[str, ...], key: str) -> None:
        await self._call("delete", place, key)

    async def _search(self, place: tuple[str, ...]) -> AsyncIterator[tuple[Sequence[str], str]]:
        offset = 0
        while items := await self._call("search", place, limit=_PAGE_SIZE, offset=offset):
            offset += len(items)
            for item in items:
                if _text_of(item) is not None:
                    yield item.namespace, item.key

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            if BLOCKING.get():
                return getattr(self.store, method)(*args, **kwargs)
            return await getattr(self.store, f"a{method}")(*args, **kwargs)
        except Exception as error:
            raise KnowledgeStoreError(
                f"{type(self.store).__name__}.{method} raised {type(error).__name__}; the original error is the cause "
                "of this one"
            ) from error


def _text_of(item: Any) -> str | None:
    text = item.value.get(CONTENT) if item is not None else None
    return text if isinstance(text, str) else None


def runtime_values(runtime: Any) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return the dependencies and variables that LangGraph's runtime provides: its store, and the run's context."""
    store, context = getattr(runtime, "store", None), getattr(runtime, "context", None)
    dependencies: dict[Any, Any] = {} if store is None else {BaseStore: store}
    if store is not None:
        dependencies[KnowledgeStore] = GraphKnowledgeStore(store)
    if context is None:
        return dependencies, {}
    variables = context if isinstance(context, Mapping) else getattr(context, "__dict__", {})
    if is_dataclass(context):
        variables = {field.name: getattr(context, field.name) for field in fields(context)}
    return {**dependencies, type(context): context}, dict(variables)
