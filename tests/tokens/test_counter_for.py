import base64
import hashlib

import pytest
import tiktoken.model
import tiktoken.registry
import tiktoken_ext.openai_public as published

from otel_assembly import Assembler, Context, ModelRequest, TokenBudgetPolicy
from otel_assembly.errors import TokenizerError
from otel_assembly.tokens import CalibratedCounter, TiktokenCounter, counter_for, models, vocabulary

BUNDLED = {"o200k_base": "o200k_base", "o200k_harmony": "o200k_base", "cl100k_base": "cl100k_base"}


def test_every_model_of_tiktokens_table_gets_its_encoding(monkeypatch):
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    for model, encoding in tiktoken.model.MODEL_TO_ENCODING.items():
        if encoding in BUNDLED:
            assert counter_for(model).name == BUNDLED[encoding], model
            assert counter_for(model).method == "exact"
        else:
            with pytest.raises(TokenizerError, match="TIKTOKEN_CACHE_DIR"):
                counter_for(model)


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4o-2024-08-06", "o200k_base"),
        ("GPT-4o ", "o200k_base"),
        ("openai/gpt-4o", "o200k_base"),
        ("azure/gpt-4o", "o200k_base"),
        ("azure/gpt-35-turbo-16k", "cl100k_base"),
        ("openai:gpt-4", "cl100k_base"),
        ("openrouter/openai/gpt-oss-120b", "o200k_base"),
        ("bedrock/openai.gpt-oss-20b-1:0", "o200k_base"),
        ("ft:gpt-3.5-turbo:acme::1", "cl100k_base"),
        ("ft:gpt-4o-mini:acme::1", "o200k_base"),
        ("openai/ft:gpt-4.1-mini-2025-04-14:acme::1", "o200k_base"),
    ],
)
def test_openai_models_are_counted_exactly(model, encoding):
    counter = counter_for(model)
    assert (counter.name, counter.method) == (encoding, "exact")
    assert isinstance(counter, TiktokenCounter)
    assert counter is counter_for(model)


async def test_without_a_model_nobody_knows_whether_the_count_is_exact():
    counter = counter_for()
    assert counter is counter_for(None)
    assert (counter.name, counter.method) == ("o200k_base", "estimated")
    text = "Is it the same for all of us?"
    assert counter.count(text) == counter_for("gpt-4o").count(text)
    for model, method in ((None, "estimated"), ("gpt-4o", "exact"), ("some-model", "estimated")):
        for assembler, context in ((Assembler([], model=model), None), (Assembler([]), Context(model=model))):
            assembly = await assembler.assemble([], [ModelRequest(content=text)], context)
            assert assembly.totals.method == method, model


async def test_a_counter_that_is_given_says_itself_how_far_it_can_be_trusted():
    assembly = await Assembler([], counter=TiktokenCounter("o200k_base")).assemble([], [ModelRequest(content="a")])
    assert assembly.totals.method == "exact"


async def test_a_budget_holds_without_a_model_as_with_one():
    events = [ModelRequest(content=f"Turn {turn}.") for turn in range(20)]
    with_one, without = [
        await Assembler([TokenBudgetPolicy(60)], model=model).assemble([], events) for model in ("gpt-4o", None)
    ]
    assert without.events == with_one.events
    assert without.totals.tokens_out == with_one.totals.tokens_out <= 60
    assert (without.totals.method, with_one.totals.method) == ("estimated", "exact")


@pytest.mark.parametrize(
    "model",
    ["claude-opus-4", "anthropic/claude-opus-4", "gemini-2.5-pro", "somebody/davinci", "azure/my-deployment", ""],
)
def test_models_without_a_public_tokenizer_are_estimated_until_billed(model):
    counter = counter_for(model)
    assert isinstance(counter, CalibratedCounter)
    assert counter.method == "estimated"
    assert counter_for(model) is counter


def test_models_do_not_share_a_calibration():
    assert counter_for("claude-a") is not counter_for("claude-b")


def test_only_the_models_used_last_keep_their_calibration(monkeypatch):
    monkeypatch.setattr(models, "_calibrated", type(models._calibrated)())
    kept, lost = counter_for("kept"), counter_for("lost")
    for number in range(255):
        counter_for("kept")
        counter_for(f"model-{number}")
    assert len(models._calibrated) == 256
    assert counter_for("kept") is kept
    assert counter_for("lost") is not lost


def test_an_unbundled_vocabulary_is_neither_fetched_nor_believed(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(
        TokenizerError, match=r"'gpt2' is not bundled.*vocab\.bpe.*6d1cbeee0f20b3d9449abfede4726ed8212e3aee"
    ):
        counter_for("gpt2")
    with pytest.raises(TokenizerError, match=r"r50k_base\.tiktoken"):
        counter_for("davinci")
    file = cache_file(tmp_path, "https://openaipublic.blob.core.windows.net/encodings/p50k_base.tiktoken")
    file.write_bytes(b"IQ== 0\n")
    with pytest.raises(TokenizerError, match="does not have the published SHA-256"):
        counter_for("text-davinci-003")
    assert file.exists()


def test_an_unbundled_vocabulary_is_read_from_the_cache(monkeypatch, tmp_path):
    """With a stand-in vocabulary of the 256 bytes, whose hash is taken for the published one."""
    address = "https://openaipublic.blob.core.windows.net/encodings/p50k_base.tiktoken"
    content = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
    sha256 = hashlib.sha256(content).hexdigest()
    cache_file(tmp_path, address).write_bytes(content)
    load = published.load_tiktoken_bpe
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(vocabulary, "CACHED", {"p50k_edit": ((address, sha256),)})
    monkeypatch.setattr(vocabulary, "_encodings", vocabulary._Encodings())
    monkeypatch.setattr(models, "_exact", {})
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setattr(published, "load_tiktoken_bpe", lambda name, expected_hash: load(name, expected_hash=sha256))
    counter = counter_for("text-davinci-edit-001")
    assert (counter.name, counter.method, counter.count("hello")) == ("p50k_edit", "exact", 5)


def cache_file(directory, address):
    return directory / hashlib.sha1(address.encode()).hexdigest()
