"""What goes wrong at a provider, as our errors: by the shapes that both SDKs raise, and providers answer with."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from otel_assembly.errors import ConfigurationError, ModelCallError, ModelContextLengthError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Statuses after which the same call may succeed; so may any from 500 on.
_RETRYABLE: Final = frozenset({408, 409, 425, 429})
#: What an error that comes in the middle of a stream, with status 200, would have had.
_STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
#: By what servers say that a prompt is too long: OpenAI; llama.cpp's; a body that is past the limit of any.
_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
#: What else does: the quota of an account is no limit of time.
_NEVER_AGAIN: Final = frozenset({"insufficient_quota"})
_NUMBER: Final = r"([\d,]+)"
#: The sentences in which they say the window, and the prompt's tokens.
_WINDOWS: Final = tuple(
    re.compile(one, re.IGNORECASE)
    for one in (
        rf"maximum context length (?:is|of) {_NUMBER}",
        rf"tokens? > {_NUMBER} maximum",
        rf"exceed context limit: [\d,]+ \+ [\d,]+ > {_NUMBER}",
        rf"exceed the configured limit of {_NUMBER} tokens",
        rf"available context size \({_NUMBER}",
        rf"maximum number of tokens allowed \({_NUMBER}",
    )
)
_TOKENS: Final = tuple(
    re.compile(one, re.IGNORECASE)
    for one in (
        rf"\({_NUMBER} in the messages",
        rf"resulted in {_NUMBER} tokens",
        rf"prompt is too long: {_NUMBER} tokens",
        rf"exceed context limit: {_NUMBER} \+",
        rf"your request has {_NUMBER} input tokens",
        rf"request \({_NUMBER} tokens\) exceeds",
        rf"you requested {_NUMBER} tokens",
        rf"input token count \({_NUMBER}",
    )
)
_TOO_LONG: Final = re.compile(r"prompt is too long|exceed(?:s|ed)? the (?:available|maximum) context", re.IGNORECASE)
#: What a server calls a kind of error; anything else might quote a prompt.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def sdk(module: str, extra: str) -> Any:
    """A provider's package.

    Raises:
        ConfigurationError: It is not installed; names the extra.
    """
    try:
        return import_module(module)
    except ImportError as missing:
        raise ConfigurationError(
            f"the {module} package is not installed; install it: pip install 'otel-assembly[{extra}]'"
        ) from missing


def options_of(options: dict[str, Any]) -> dict[str, Any]:
    """Further arguments of a provider's call, as somebody gave them to a client.

    Raises:
        ConfigurationError: One of them decides what the client has to know.
    """
    if "stream" in options:
        raise ConfigurationError("'stream' is not for the SDK's call to say; give streams=True, or leave it out")
    return options


@contextmanager
def failing(provider: str, model: str) -> Iterator[None]:
    """A block in which a provider is called: what the SDK raises in it is raised as our errors.

    A `TypeError` is let through, the SDK's word on an argument that it does not know, and so is a warning.
    """
    try:
        yield
    except (ModelCallError, TypeError, Warning):
        raise
    except Exception as error:
        raise error_of(provider, model, error) from error


def error_of(provider: str, model: str, error: Exception) -> ModelCallError:
    """Our error for one of the SDK's, or of what it rests on; it quotes nothing that the provider said."""
    told = _told(error)
    status: int | None = getattr(error, "status_code", None)
    kinds = [one for one in (told.get("code"), told.get("type")) if isinstance(one, str) and _NAME.fullmatch(one)]
    if status is None or status < 400:
        status = next((_STATUSES[one] for one in kinds if one in _STATUSES), _status(told.get("code")))
    said = told.get("message")
    said = said if isinstance(said, str) else ""
    if status in (None, 400, 413, 422) and (_is_too_long(said) or not _TOO_LONG_CODES.isdisjoint(kinds)):
        return ModelContextLengthError(
            provider=provider,
            model=model,
            status=status,
            window=_whole(told.get("n_ctx")) or _first(_WINDOWS, said),
            tokens=_whole(told.get("n_prompt_tokens")) or _first(_TOKENS, said),
        )
    if not told and status is None:
        problem, again = _unspoken(error)
        return ModelCallError(problem, provider=provider, model=model, retryable=again)
    again = (status is None or status in _RETRYABLE or status >= 500) and _NEVER_AGAIN.isdisjoint(kinds)
    problem = ", ".join(dict.fromkeys(kinds)) or type(error).__name__
    return ModelCallError(problem, provider=provider, model=model, status=status, retryable=again)


def _unspoken(error: Exception) -> tuple[str, bool]:
    """What went wrong where no provider said anything, and whether the same call may succeed."""
    name = type(error).__name__
    if isinstance(error, (AttributeError, LookupError, ValidationError)):
        return f"what answered does not speak this API ({name}); see whether base_url leads to it", False
    if isinstance(error, ValueError) and not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"the SDK refuses the request ({name}); it says why in this error's cause", False
    return f"the connection failed, or broke off ({name})", True


def broken_off(provider: str, model: str) -> ModelCallError:
    """The error of an answer that ended before it was whole."""
    return ModelCallError("the answer broke off before its end", provider=provider, model=model, retryable=True)


def _told(error: Exception) -> dict[str, Any]:
    """What the provider told of an error, from wherever in the body it stands; nothing where it told nothing."""
    body = getattr(error, "body", None)
    if isinstance(body, list) and body:  # so Gemini answers
        body = body[0]
    while isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    if isinstance(body, dict):
        return body
    return {"message": body} if isinstance(body, str) else {}


def _is_too_long(said: str) -> bool:
    return bool(_TOO_LONG.search(said)) or any(window.search(said) for window in _WINDOWS)


def _first(patterns: tuple[re.Pattern[str], ...], said: str) -> int | None:
    found = next((match for match in (pattern.search(said) for pattern in patterns) if match), None)
    return int(found[1].replace(",", "")) if found is not None else None


def _status(code: Any) -> int | None:
    """The status that a server writes where others have the name of an error."""
    return code if type(code) is int and 400 <= code < 600 else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
