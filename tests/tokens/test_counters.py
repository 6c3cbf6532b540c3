import base64
import lzma
import random
import threading

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_assembly import ConfigurationError
from otel_assembly.errors import TokenizerError, UnknownNameError
from otel_assembly.tokens import CharacterCounter, TiktokenCounter, long_runs, meter
from otel_assembly.tokens import vocabulary as vocabulary_module

ENCODINGS = ("o200k_base", "cl100k_base")
TEXTS = {
    "empty": "",
    "english": "Before every model call, an agent decides what the model gets to see.",
    "korean": "안녕하세요. 이 문장은 토큰 수를 세기 위한 것입니다. 뷁쉙",
    "json": '{"a": [1, 2.5, null], "b": {"c": "d\\n"}}',
    "base64": base64.b64encode(random.Random(7).randbytes(6_000)).decode(),
    "emoji": "👩‍👩‍👧‍👦 🇰🇷 e\u0301",
    "special": "a<|endoftext|>b<|fim_prefix|><|endofprompt|><|start|>",
    "contractions": "I'LL say it's we'Re don't",
    "spaces": "a \n\n  b\t\t\r\n   c   \n  ",
    "code": "def f(x):\n    return x //  2\n\n\n\n#///\n//\n",
}


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_counts_as_tiktoken_does(reference, name, text):
    assert TiktokenCounter(name).count(text) == len(reference[name].encode(text, disallowed_special=()))


@given(st.text(alphabet=st.characters(codec="utf-8")))
@settings(max_examples=100, deadline=None)
def test_counts_any_text_as_tiktoken_does(reference, text):
    for name in ENCODINGS:
        assert TiktokenCounter(name).count(text) == len(reference[name].encode_ordinary(text))


def test_patterns_are_those_of_the_installed_tiktoken(reference):
    for name, encoding in reference.items():
        assert vocabulary_module.BUNDLED[name].pat_str == encoding._pat_str
        assert vocabulary_module.BUNDLED[name].end_of_text == encoding.eot_token
        assert vocabulary_module.shared_encoding(name)._mergeable_ranks == encoding._mergeable_ranks


def test_what_looks_like_a_special_token_is_plain_text():
    assert TiktokenCounter("o200k_base").count("<|endoftext|>") == 7


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud83d\ude00", "\udc00\ud800 x"])
def test_surrogates_count_as_what_can_be_sent(reference, text):
    sendable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert TiktokenCounter("o200k_base").count(text) == len(reference["o200k_base"].encode_ordinary(sendable))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("o200k_base", "a" * 1_000_000),
        ("o200k_base", base64.b64encode(random.Random(1).randbytes(750_000)).decode()),
        ("cl100k_base", "\n" * 1_000_000),
    ],
    ids=["letter", "base64", "newlines"],
)
def test_a_million_characters_count_exactly(reference, name, text):
    assert TiktokenCounter(name).count(text) == len(reference[name].encode_ordinary(text))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("around", [("", ""), ("!\n", "x"), ("x\n\n", "\n\nx")])
def test_spaces_beyond_what_tiktoken_can_split_count(name, around):
    before, after = around
    spaces = 1_100_032
    # The longest token of spaces is 128 of them; a handful of tokens is all that the surroundings can add.
    assert spaces // 128 <= TiktokenCounter(name).count(before + " " * spaces + after) <= spaces // 128 + 6


_SPACE = st.text(alphabet=" \t\u00a0\u3000", min_size=0, max_size=90)
_SHORT = st.text(alphabet="ab1!/ \n\r\t\x1c\u00e9\u0301가'", max_size=6)


@given(st.lists(st.tuples(_SHORT, _SPACE, _SHORT), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_cutting_at_long_spaces_keeps_the_count(reference, parts):
    text = "".join("".join(part) for part in parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter, "_LONG", 4)
        patch.setattr(long_runs, "_LONG_SPACE", 4)
        for name in ENCODINGS:
            assert TiktokenCounter(name).count(text) == len(reference[name].encode_ordinary(text))


_AROUND = st.text(alphabet="ab1!/= \n\té'", max_size=12)


@given(st.lists(st.tuples(_AROUND, st.integers(0, 127).map(chr), st.integers(1_200, 2_600)), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_a_long_run_counts_as_tiktoken_counts_it(reference, parts):
    text = "".join(around + char * length for around, char, length in parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter, "_LONG", 4)
        patch.setattr(long_runs, "_BLOCK", 300)
        patch.setattr(long_runs, "_KEPT", 512)
        for name in ENCODINGS:
            assert TiktokenCounter(name).count(text) == len(reference[name].encode_ordinary(text))


@pytest.mark.parametrize("char", [" ", "a", "=", "\n"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_of_a_long_run_tiktoken_is_handed_a_short_one(name, char, monkeypatch):
    handed = []
    count = long_runs._count
    monkeypatch.setattr(long_runs, "_count", lambda by, text: handed.append(len(text)) or count(by, text))
    assert TiktokenCounter(name).count(f"Before.{char * 1_000_000}After.") > 1_000
    assert sum(handed) < 10_000


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_long_text_counts_as_a_list_of_its_tokens_has(reference, name):
    text = "Prose, <|endoftext|> and 12,345 é 中文.\n" * 2_000
    assert TiktokenCounter(name).count(text) == len(reference[name].encode_ordinary(text))
    assert TiktokenCounter(name).count(text + "\ud800") == len(reference[name].encode_ordinary(text + "\ufffd"))


def test_the_vocabulary_is_read_once_for_all_threads(monkeypatch):
    reads = []
    read = vocabulary_module.read_encoding
    monkeypatch.setattr(vocabulary_module, "_encodings", vocabulary_module._Encodings())
    monkeypatch.setattr(vocabulary_module, "read_encoding", lambda name, file: reads.append(name) or read(name, file))
    counters = [TiktokenCounter("o200k_base") for _ in range(8)]
    assert reads == []
    threads = [threading.Thread(target=counter.count, args=("some text",)) for counter in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reads == ["o200k_base"]


def test_a_changed_vocabulary_is_refused(tmp_path, vocabularies):
    content = lzma.decompress((vocabularies / "cl100k_base.tiktoken.xz").read_bytes())
    file = tmp_path / "cl100k_base.tiktoken.xz"
    file.write_bytes(lzma.compress(content.replace(b"IQ== 0", b"IQ== 1", 1), preset=0))
    with pytest.raises(TokenizerError, match=r"cl100k_base\.tiktoken\.xz has the SHA-256 .* reinstall"):
        TiktokenCounter("cl100k_base", vocabulary=file).count("x")


@pytest.mark.parametrize("content", [b"", b"no xz", None], ids=["empty", "other", "cut"])
def test_a_damaged_or_missing_vocabulary_is_refused(tmp_path, vocabularies, content):
    file = tmp_path / "o200k_base.tiktoken.xz"
    if content is None:
        content = (vocabularies / "o200k_base.tiktoken.xz").read_bytes()[:10_000]
    file.write_bytes(content)
    with pytest.raises(TokenizerError, match=r"cannot be read .* reinstall|has the SHA-256 .* reinstall"):
        TiktokenCounter("o200k_base", vocabulary=file).count("x")
    with pytest.raises(TokenizerError, match="cannot be read"):
        TiktokenCounter("o200k_base", vocabulary=tmp_path / "absent").count("x")


def test_a_vocabulary_of_ones_own_with_the_right_content_counts(vocabularies):
    counter = TiktokenCounter("cl100k_base", vocabulary=vocabularies / "cl100k_base.tiktoken.xz")
    assert counter.count("hello world") == 2


def test_an_unknown_encoding_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'o200k_base'"):
        TiktokenCounter("o200k")


def test_a_panic_of_the_core_becomes_an_error_without_the_text(monkeypatch):
    class PanicException(BaseException):
        pass

    class Broken:
        name = "broken"

        def encode_ordinary(self, text):
            raise PanicException

    counter = TiktokenCounter("o200k_base")
    monkeypatch.setattr(counter, "_encoding", Broken())
    with pytest.raises(TokenizerError, match="text of 6 characters") as caught:
        counter.count("secret")
    assert "secret" not in str(caught.value)


def test_characters():
    counter = CharacterCounter(4)
    assert [counter.count(text) for text in ("", "a", "abcd", "abcde")] == [0, 1, 1, 2]
    assert (counter.method, counter.name) == ("estimated", "characters/4")


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "4", None])
def test_characters_refuse_what_cannot_divide(value):
    with pytest.raises(ConfigurationError, match="chars_per_token"):
        CharacterCounter(value)


def test_the_reference_is_another_object(reference):
    assert reference["o200k_base"] is not vocabulary_module.shared_encoding("o200k_base")
    assert isinstance(reference["o200k_base"], tiktoken.Encoding)
