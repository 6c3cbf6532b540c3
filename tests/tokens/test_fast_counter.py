"""`FastTiktokenCounter` counts as `TiktokenCounter` does, or leaves it to it."""

from __future__ import annotations

import logging
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_counters import TEXTS

from otel_assembly import Assembler, ModelRequest
from otel_assembly.errors import TokenizerError, UnknownNameError
from otel_assembly.tokens import FastTiktokenCounter, TiktokenCounter

toktok = pytest.importorskip("toktok", reason="toktok-rs has no wheel for this platform")

ENCODINGS = ("o200k_base", "cl100k_base")


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("text", [*TEXTS.values(), "\ud800", "a\udfffb", "x " * 50_000, "a" * 30_000])
def test_it_counts_as_tiktoken_does(name, text):
    assert FastTiktokenCounter(name).count(text) == TiktokenCounter(name).count(text)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_it_counts_any_text_as_tiktoken_does(text):
    for name in ENCODINGS:
        assert FastTiktokenCounter(name).count(text) == TiktokenCounter(name).count(text)


async def test_an_assembler_counts_with_it_and_says_which_vocabulary_that_is():
    assembly = await Assembler([], counter=FastTiktokenCounter("o200k_base")).assemble([], [ModelRequest(content="hi")])
    same = await Assembler([], model="gpt-4o").assemble([], [ModelRequest(content="hi")])
    assert assembly.totals == same.totals
    assert (assembly.totals.method, assembly.totals.encoding) == ("exact", "o200k_base")


def of(count):
    """The tokenizer as another release of it might be."""
    module = types.ModuleType("toktok")
    module._encoding = lambda name: types.SimpleNamespace(count=count)
    return module


@pytest.mark.parametrize("module", [of(len), types.ModuleType("toktok")], ids=["counts otherwise", "has no such call"])
def test_where_it_is_not_tiktokens_equal_a_warning_says_so_once_and_tiktoken_counts(monkeypatch, caplog, module):
    monkeypatch.setitem(sys.modules, "toktok", module)
    with caplog.at_level(logging.WARNING, "otel_assembly"):
        for _ in range(3):
            assert FastTiktokenCounter("o200k_base").count("hello world") == 2
    assert [record.message.endswith("tiktoken is used") for record in caplog.records] == [True]


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "toktok", None)
    with pytest.raises(TokenizerError, match=r"otel-assembly\[fast-tokens\]"):
        FastTiktokenCounter("o200k_base")


def test_what_is_not_bundled_is_refused_with_what_is():
    with pytest.raises(UnknownNameError, match="o200k_base"):
        FastTiktokenCounter("gpt2")
