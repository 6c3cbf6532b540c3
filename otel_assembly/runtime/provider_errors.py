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

#: HTTP statuses below 500 after which a retry may succeed. From 500 on, every status is retryable.
_RETRYABLE: Final = frozenset({408, 409, 425, 429})
#: The HTTP status by error type, for errors inside a stream: the stream's own status is 200.
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
#: Error codes after which a retry cannot succeed, although their status is 429.
_NOT_RETRYABLE_CODES: Final = frozenset({"insufficient_quota"})
_NUMBER: Final = r"([\d,]+)"
#: Error messages of providers that state the model's window (the most tokens that the model accepts).
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
#: Error messages of providers that state the number of tokens of the refused prompt.
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
_ERROR_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


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


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the additional arguments of the SDK's call, after a check.

    Raises:
        ConfigurationError: ``stream`` is among the arguments.
    """
    if "stream" in options:
        raise ConfigurationError("'stream' cannot be an option of the SDK's call; use streams=True instead")
    return options


@contextmanager
def converted_errors(provider: str, model: str) -> Iterator[None]:
    """Convert errors that a provider call raises inside the ``with`` block to `ModelCallError`.

    A `TypeError`, which the SDK raises for an unknown argument, and warnings are not converted.
    """
    try:
        yield
    except (ModelCallError, TypeError, Warning):
        raise
    except Exception as error:
        raise error_of(provider, model, error) from error


def error_of(provider: str, model: str, error: Exception) -> ModelCallError:
    """Return the `ModelCallError` for an error of the SDK.

    The provider's message is not copied, because it may contain parts of the prompt.
    """
    body = _error_body(error)
    status: int | None = getattr(error, "status_code", None)
    kinds = [
        kind for kind in (body.get("code"), body.get("type")) if isinstance(kind, str) and _ERROR_TYPE.fullmatch(kind)
    ]
    if status is None or status < 400:
        status = next((_STATUSES[kind] for kind in kinds if kind in _STATUSES), _http_status(body.get("code")))
    message = body.get("message")
    message = message if isinstance(message, str) else ""
    if status in (None, 400, 413, 422) and (_is_too_long(message) or not _TOO_LONG_CODES.isdisjoint(kinds)):
        return ModelContextLengthError(
            provider=provider,
            model=model,
            status=status,
            window=_positive_int(body.get("n_ctx")) or _first_number(_WINDOWS, message),
            tokens=_positive_int(body.get("n_prompt_tokens")) or _first_number(_TOKENS, message),
        )
    if not body and status is None:
        problem, is_retryable = _local_problem(error)
        return ModelCallError(problem, provider=provider, model=model, retryable=is_retryable)
    is_retryable = (status is None or status in _RETRYABLE or status >= 500) and _NOT_RETRYABLE_CODES.isdisjoint(kinds)
    problem = ", ".join(dict.fromkeys(kinds)) or type(error).__name__
    return ModelCallError(problem, provider=provider, model=model, status=status, retryable=is_retryable)


def _local_problem(error: Exception) -> tuple[str, bool]:
    """Describe an error that is no answer of the provider, such as a lost connection.

    Returns:
        The problem, and True if a retry may succeed.
    """
    name = type(error).__name__
    if isinstance(error, (AttributeError, LookupError, ValidationError)):
        return f"the server's answer does not match this API ({name}); check base_url", False
    if isinstance(error, ValueError) and not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"the SDK refuses the request ({name}); see this error's cause", False
    return f"the connection failed or was interrupted ({name})", True


def incomplete_answer(provider: str, model: str) -> ModelCallError:
    """Return the error for an answer that ended before it was complete."""
    return ModelCallError("the answer broke off before its end", provider=provider, model=model, retryable=True)


def _error_body(error: Exception) -> dict[str, Any]:
    """Return the innermost error object of the provider's response, or an empty dict."""
    body = getattr(error, "body", None)
    if isinstance(body, list) and body:  # Gemini sends a list
        body = body[0]
    while isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    if isinstance(body, dict):
        return body
    return {"message": body} if isinstance(body, str) else {}


def _is_too_long(message: str) -> bool:
    return bool(_TOO_LONG.search(message)) or any(window.search(message) for window in _WINDOWS)


def _first_number(patterns: tuple[re.Pattern[str], ...], message: str) -> int | None:
    match = next((match for match in (pattern.search(message) for pattern in patterns) if match), None)
    return int(match[1].replace(",", "")) if match is not None else None


def _http_status(code: Any) -> int | None:
    """Return an error's code if it is an HTTP status, as some servers send it; otherwise None."""
    return code if type(code) is int and 400 <= code < 600 else None


def _positive_int(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
