"""A self-contained HTML page that shows, from exported spans, how the context of each model call was assembled."""

from otel_assembly.page.document import render_page, save_page, write_page
from otel_assembly.page.fields import MAX_TEXT
from otel_assembly.page.local_texts import LocalConversation, add_texts
from otel_assembly.page.model import page_model

__all__ = [
    "MAX_TEXT",
    "LocalConversation",
    "add_texts",
    "page_model",
    "render_page",
    "save_page",
    "write_page",
]
