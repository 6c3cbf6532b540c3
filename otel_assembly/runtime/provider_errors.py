"""Converts errors of the OpenAI and Anthropic SDKs to `ModelCallError` and `ModelContextLengthError`."""

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

#: Statuses after which a retry may succeed, in addition to all from 500 on.
_RETRYABLE: Final = frozenset({408, 409, 425, 429})
#: The status by error type, for errors inside a stream, whose HTTP status is 200.
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
#: Error codes for a prompt that is too long: of OpenAI, of llama.cpp, and for a request body that is too large.
_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
#: Error codes with status 429 after which a retry cannot succeed.
_NEVER_AGAIN: Final = frozenset({"insufficient_quota"})
_NUMBER: Final = r"([\d,]+)"
#: Patterns of error messages that contain the model's window; `_TOKENS`: those that contain the prompt's tokens.
_WINDOWS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"maximum context length (?:is|of) {_NUMBER}",
        rf"tokens? > {_NUMBER} maximum",
        rf"exceed context limit: [\d,]+ \+ [\d,]+ > {_NUMBER}",
        rf"exceed the configured limit of {_NUMBER} tokens",
        rf"available context size \({_NUMBER}",
        rf"maximum number of tokens allowed \({_NUMBER}",
    )
)
_TOKENS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
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
#: A valid name of an error type. Other texts are not exported, because they may contain parts of a prompt.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def sdk(module: str, extra: str) -> Any:
    """Import and return a provider's package.

    Raises:
        ConfigurationError: The package is not installed; the error names the extra.
    """
    try:
        return import_module(module)
    except ImportError as missing:
        raise ConfigurationError(
            f"the {module} package is not installed; install it: pip install 'otel-assembly[{extra}]'"
        ) from missing


def options_of(options: dict[str, Any]) -> dict[str, Any]:
    """Check and return the further arguments of a provider's call.

    Raises:
        ConfigurationError: `stream` is among them.
    """
    if "stream" in options:
        raise ConfigurationError("'stream' cannot be an option of the SDK's call; use streams=True instead")
    return options


@contextmanager
def failing(provider: str, model: str) -> Iterator[None]:
    """Convert errors of a provider call inside the block to `ModelCallError`.

    A `TypeError`, which the SDK raises for an unknown argument, and a warning are not converted.
    """
    try:
        yield
    except (ModelCallError, TypeError, Warning):
        raise
    except Exception as error:
        raise error_of(provider, model, error) from error


def error_of(provider: str, model: str, error: Exception) -> ModelCallError:
    """Return the `ModelCallError` for an error of the SDK; it contains no text of the provider's message."""
    body = _error_body(error)
    status: int | None = getattr(error, "status_code", None)
    kinds = [kind for kind in (body.get("code"), body.get("type")) if isinstance(kind, str) and _NAME.fullmatch(kind)]
    if status is None or status < 400:
        status = next((_STATUSES[kind] for kind in kinds if kind in _STATUSES), _status(body.get("code")))
    message = body.get("message")
    message = message if isinstance(message, str) else ""
    if status in (None, 400, 413, 422) and (_is_too_long(message) or not _TOO_LONG_CODES.isdisjoint(kinds)):
        return ModelContextLengthError(
            provider=provider,
            model=model,
            status=status,
            window=_whole(body.get("n_ctx")) or _first(_WINDOWS, message),
            tokens=_whole(body.get("n_prompt_tokens")) or _first(_TOKENS, message),
        )
    if not body and status is None:
        problem, again = _local_problem(error)
        return ModelCallError(problem, provider=provider, model=model, retryable=again)
    again = (status is None or status in _RETRYABLE or status >= 500) and _NEVER_AGAIN.isdisjoint(kinds)
    problem = ", ".join(dict.fromkeys(kinds)) or type(error).__name__
    return ModelCallError(problem, provider=provider, model=model, status=status, retryable=again)


def _local_problem(error: Exception) -> tuple[str, bool]:
    """Describe an error without an answer of the provider; return the problem and whether a retry may succeed."""
    name = type(error).__name__
    if isinstance(error, (AttributeError, LookupError, ValidationError)):
        return f"the server's answer does not match this API ({name}); check base_url", False
    if isinstance(error, ValueError) and not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"the SDK refuses the request ({name}); see this error's cause", False
    return f"the connection failed, or broke off ({name})", True


def broken_off(provider: str, model: str) -> ModelCallError:
    """Return the error of an answer that ended early."""
    return ModelCallError("the answer broke off before its end", provider=provider, model=model, retryable=True)


def _error_body(error: Exception) -> dict[str, Any]:
    """Return the innermost error object of the provider's response, or an empty dict."""
    body = getattr(error, "body", None)
    if isinstance(body, list) and body:  # Gemini's form
        body = body[0]
    while isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    if isinstance(body, dict):
        return body
    return {"message": body} if isinstance(body, str) else {}


def _is_too_long(message: str) -> bool:
    return bool(_TOO_LONG.search(message)) or any(window.search(message) for window in _WINDOWS)


def _first(patterns: tuple[re.Pattern[str], ...], message: str) -> int | None:
    found = next((match for match in (pattern.search(message) for pattern in patterns) if match), None)
    return int(found[1].replace(",", "")) if found is not None else None


def _status(code: Any) -> int | None:
    """Return the HTTP status if a server sends it as the error's code."""
    return code if type(code) is int and 400 <= code < 600 else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
