"""Sessions of Claude Code that tests write."""

from __future__ import annotations


class Session:
    """Writes the lines of a session, each with a uuid and the uuid of the line before it."""

    def __init__(self, **common):
        self.lines = []
        self.common = {"sessionId": "s-1", "version": "2.1.0", "isSidechain": False, "cwd": "/home/me", **common}
        self.newest = None

    def add(self, kind, uuid, *, parent="", **fields):
        parent = self.newest if parent == "" else parent
        self.lines.append({"parentUuid": parent, "type": kind, "uuid": uuid, **self.common, **fields})
        self.newest = uuid
        return self

    def user(self, uuid, content, **fields):
        return self.add("user", uuid, message={"role": "user", "content": content}, **fields)

    def answer(self, uuid, response, *blocks, model="claude-sonnet-4-5", **fields):
        message = {
            "id": response,
            "role": "assistant",
            "model": model,
            "content": list(blocks),
            **fields.pop("more", {}),
        }
        return self.add("assistant", uuid, message=message, **fields)


def text(value):
    return {"type": "text", "text": value}


def call(call_id, name="Read", **arguments):
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id, content):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def user(content):
    return {"role": "user", "content": content}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def compacted(*, logical):
    """A session that is compacted once; in later versions, the boundary has no parent."""
    session = Session().user("u1", "Sort the list.").answer("a1", "m1", text("I read."), stop_reason=None)
    session.answer("a2", "m1", call("t1", path="list.txt")).user("r1", [result("t1", "b a")])
    session.answer("a3", "m2", text("Sorted."))
    links = {"parent": None, "logicalParentUuid": "a3"} if logical else {}
    metadata = {"trigger": "auto", "preTokens": 900, "postTokens": 80}
    session.add("system", "b1", subtype="compact_boundary", content="Compacted", compactMetadata=metadata, **links)
    session.user("c1", "Summary: the list is sorted.", isCompactSummary=True).user("u2", "Reverse it.")
    return session.answer("a4", "m3", text("Reversed."))
