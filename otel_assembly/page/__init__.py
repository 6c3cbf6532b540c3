"""A self-contained HTML page that shows, from exported spans, how the context of each model call was assembled."""

from otel_assembly.page.document import render_live_page, render_page, save_page, write_page
from otel_assembly.page.fields import MAX_TEXT
from otel_assembly.page.live import LivePage, LiveUpdate, is_page_span
from otel_assembly.page.local_texts import LocalConversation, add_texts
from otel_assembly.page.model import page_model
from otel_assembly.page.row_store import RowStore

__all__ = [
    "MAX_TEXT",
    "LivePage",
    "LiveUpdate",
    "LocalConversation",
    "RowStore",
    "add_texts",
    "is_page_span",
    "page_model",
    "render_live_page",
    "render_page",
    "save_page",
    "write_page",
]
