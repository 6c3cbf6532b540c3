"""Requests of programs that call providers' clients themselves, and what the telemetry shows of them."""

from __future__ import annotations

from provider_bodies import chat_body

TEXT = "Your bag is at gate 14."


def user(text):
    return {"role": "user", "content": text}


def chat(clients, messages, **settings):
    return clients.openai.chat.completions.create(model="m", messages=messages, **settings)


def answer_chats(server, count):
    for _ in range(count):
        server.answers(chat_body({"role": "assistant", "content": TEXT}))


def assemblies(telemetry):
    return telemetry.spans_named("assemble_context")
