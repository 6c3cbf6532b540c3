"""Recognizes error messages that a compactor returned instead of a summary.

Functions that call a model often return an error's message as text instead of raising the error.
"""

from __future__ import annotations

import re
from typing import Final

#: A longer text is never taken for an error message, whatever its first line is.
MAX_ERROR_CHARACTERS: Final = 1_000

_MAKE = r"(?:generat|creat|produc|summari[sz]|compact|compress|complet|process|call|contact|connect|reach|fetch|load)"
_CANNOT = r"(?:can(?:no|['’])?t|can\ not|could\ not|couldn['’]t|unable|not\ able|won['’]t)"

_OPENING = re.compile(
    r"""
      (?:[\w.]*(?:error|exception)|fatal|traceback)\ *(?:[(\[][^)\]\n]*[)\]])?\ *(?:code)?\ *\d{0,3}\ *:
    | (?:[\w.]*(?:error|exception))\ *[(\[]
    | traceback\ \(most\ recent
    | error\ (?:while\ |when\ |in\ )?MAKEing\b
    | error\ code\b
    | an?\ (?:\w+\ )?(?:error|exception)\ (?:has\ )?occurred
    | (?:failed|unable|could\ not|couldn['’]t|cannot|can['’]t)\ (?:to\ )?MAKEe?\b
    | (?:http|status)(?:\ error|\ code)?\ *:?\ *[45]\d\d\b
    | (?:[45]\d\d\ )?(?:internal\ server\ error|bad\ gateway|service\ unavailable|gateway\ time-?out)
    | (?:[45]\d\d\ )?too\ many\ requests
    | (?:rate\ limit|quota|context\ length|maximum\ context\ length)\ (?:was\ |is\ |has\ been\ )?(?:exceeded|reached)
    | request\ timed\ out
    | \{\s*"error"\s*:
    | (?:i['’]?m|i\ am|we['’]?re)?\ *(?:very\ |so\ )?sorry\b[^.\n]{0,60}?\bCANNOT\b
    | (?:my\ |i\ )?apologi[a-z]+\b[^.\n]{0,60}?\bCANNOT\b
    | i(?:['’]m|\ am)?\ CANNOT\ (?:to\ )?(?:help|assist|do|provide|comply|summari[sz]e|process|fulfil|access)
    | as\ an\ ai\b
    | no\ summary\ (?:is\ |was\ )?(?:available|generated|produced)
    | (?:the\ )?(?:previous\ |earlier\ )?(?:conversation|history|text|input)\ (?:was|is)\ too\ (?:long|large)
    | (?:오류|에러|错误|錯誤|エラー)(?:が発生|\s*[:：])
    | 죄송(?:합니다|하지만) | (?:很)?抱歉 | 申し訳
    """.replace("MAKE", _MAKE).replace("CANNOT", _CANNOT),
    re.IGNORECASE | re.VERBOSE,
)
_DECORATION = " \t*_#>`'\"“([<-!⚠️❌"


def is_error_text(answer: str, original: str) -> bool:
    """Return whether a compactor's answer is an error message or a refusal instead of a summary.

    This is the case if the answer has at most 1,000 characters and its first line begins like an error message
    (``Error: …``, ``ValueError(…``, ``Failed to summarize …``, ``I'm sorry, I can't …``, ``{"error": …``). It is not
    the case if the first line also occurs in the original, because a summary of a log may begin with one of its errors.

    Args:
        answer: The text that the compactor returned.
        original: The text that the compactor was given.
    """
    text = answer.strip()
    if not text or len(text) > MAX_ERROR_CHARACTERS:
        return False
    line = text.split("\n", 1)[0].strip()
    return _OPENING.match(line.lstrip(_DECORATION)) is not None and line not in original
