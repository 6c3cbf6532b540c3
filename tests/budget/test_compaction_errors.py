"""Error messages that come in the place of a summary, and summaries that only look like one."""

from __future__ import annotations

import pytest

from otel_assembly.budget import is_error_text

ERRORS = [
    "Error generating summary: Connection error.",
    "Error generating summary: 429 {'error': {'message': 'rate limited'}}",
    "Error: model overloaded",
    "**Error:** model overloaded",
    "ERROR 500: try later",
    "openai.RateLimitError: Error code: 429",
    "Error code: 429 - {'error': {}}",
    "ValueError('no choices')",
    "Exception: broken pipe",
    "Traceback (most recent call last):\n  File 'a.py', line 1",
    "An error occurred while processing your request.",
    "An unexpected error has occurred",
    "Failed to generate summary",
    "Failed to summarize the conversation.",
    "Unable to connect to the server",
    "Could not process the text",
    "I'm sorry, I can't help with that.",
    "I’m sorry, but I can’t assist with this request.",
    "Sorry, as a model I am unable to read it.",
    "I cannot assist with that.",
    "I'm unable to process this text.",
    "I apologize, but I cannot fulfil this.",
    "As an AI language model, I have no access.",
    '{"error": {"message": "quota"}}',
    "HTTP 503",
    "503 Service Unavailable",
    "Too many requests",
    "Rate limit exceeded, please retry",
    "Request timed out.",
    "Previous conversation was too long to summarize.",
    "No summary available.",
    "오류: 요청이 너무 많습니다",
    "죄송합니다. 요약할 수 없습니다.",
    "错误：请求失败",
    "抱歉，我无法总结。",
    "エラーが発生しました",
]
SUMMARIES = [
    "The customer reported an error in order 4411.",
    "Errors in the login service fell by 3 % in May.",
    "Error handling was moved into the client; the retry limit is 5.",
    "Failed logins rose to 412 on 3 May; Kim decided to lock the account.",
    "Exceptional weather delayed flight HAT083.",
    "I will call back on Monday, the agent said.",
    "Sorry for the delay, wrote Kim; refund of $50 sent.",
    "The agent apologised and could not change the basic economy ticket.",
    "503 passengers were rebooked.",
    "고객은 환불을 원합니다.",
    "客户要求退款。",
]


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_message_is_no_summary(text):
    assert is_error_text(text, "what the text was about")
    assert is_error_text(f"\n  {text}\n", "what the text was about")


@pytest.mark.parametrize("text", SUMMARIES)
def test_a_summary_that_speaks_of_errors_is_one(text):
    assert not is_error_text(text, "what the text was about")


def test_an_error_that_the_original_reports_may_open_its_summary():
    log = "10:00 start\nError: disk /dev/sda1 is full\n10:02 stop"
    assert not is_error_text("Error: disk /dev/sda1 is full\nThe job stopped.", log)
    assert is_error_text("Error: disk /dev/sda1 is full", "another text")


def test_what_has_much_to_say_is_no_error_message():
    assert not is_error_text("Error: the import failed. " + "Then Kim mended row 17. " * 60, "")
