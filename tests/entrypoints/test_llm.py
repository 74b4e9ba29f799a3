"""`LLM` over a scripted core: prompt forms, order, chat, metrics, interruption."""

import signal
import subprocess
import sys

import pytest
from scripted_core import ScriptedCore, make_engine_config, make_tokenizer, write_tiny_model

from minivllm import SamplingParams
from minivllm.engine.client import InprocClient
from minivllm.errors import ClientError, ConfigError
from minivllm.messages.output import EngineReady


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def core(tokenizer):
    return ScriptedCore(tokenizer)


@pytest.fixture
def llm(tokenizer, core, monkeypatch):
    llm_module = pytest.importorskip("minivllm.entrypoints.llm")
    engine = llm_module.LLMEngine(make_engine_config(tokenizer), InprocClient(core, EngineReady(100, 4, 64, 1)), tokenizer)
    monkeypatch.setattr(llm_module.LLMEngine, "from_engine_args", lambda args, progress: engine)
    return llm_module.LLM("folder", block_size=4)


def test_results_come_in_prompt_order(llm, tokenizer):
    prompts = ["one", tokenizer.encode("two"), {"prompt": "three"}, {"prompt_token_ids": tokenizer.encode("four")}]
    params = [SamplingParams(max_tokens=n) for n in (9, 1, 5, 3)]
    results = llm.generate(prompts, params, use_tqdm=False)
    assert [r.prompt_token_ids for r in results] == [tokenizer.encode(t) for t in ("one", "two", "three", "four")]
    assert [len(r.outputs[0].token_ids) for r in results] == [9, 1, 5, 3]
    assert all(r.finished and r.outputs[0].finish_reason == "length" for r in results)
    assert len({r.request_id for r in results}) == 4


@pytest.mark.parametrize("prompt", ["one", [65, 66], {"prompt": "one"}])
def test_one_prompt(llm, prompt):
    assert len(llm.generate(prompt, SamplingParams(max_tokens=2), use_tqdm=False)) == 1


def test_no_prompts(llm):
    assert llm.generate([], use_tqdm=False) == []


def test_defaults_are_the_models(llm, core):
    llm.generate("one", use_tqdm=False)
    assert (core.added[0].sampling_params.temperature, core.added[0].sampling_params.max_tokens) == (0.5, 3)


def test_a_refused_prompt_stops_all(llm, core):
    with pytest.raises(ClientError, match="cannot be empty"):
        llm.generate(["one", ""], use_tqdm=False)
    with pytest.raises(ClientError, match="2 prompts, but 1 sampling_params"):
        llm.generate(["one", "two"], [SamplingParams()], use_tqdm=False)
    assert not core.running
    assert len(llm.generate("one", use_tqdm=False)) == 1


def test_interruption_aborts_and_leaves_the_engine_usable(llm, core, monkeypatch):
    step, calls = core.step, []

    def interrupted():
        calls.append(1)
        outputs = step()
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
            calls.append("the step went on")
        return outputs

    monkeypatch.setattr(core, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["one", "two"], SamplingParams(max_tokens=20), use_tqdm=False)
    assert not core.running and len(core.aborted) == 2
    assert calls == [1, 1, "the step went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(llm.generate("one", use_tqdm=False)) == 1


def test_chat(llm, tokenizer):
    conversation = [{"role": "user", "content": "one"}]
    for messages in (conversation, [conversation, conversation]):
        results = llm.chat(messages, SamplingParams(max_tokens=2), use_tqdm=False)
        assert [r.prompt for r in results] == ["<user>one<assistant>"] * (1 if messages is conversation else 2)
    assert results[0].prompt_token_ids == tokenizer.encode("<user>one<assistant>", add_special_tokens=False)
    final = [*conversation, {"role": "assistant", "content": "two"}]
    result = llm.chat(final, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
    assert result[0].prompt == "<user>one<assistant>two"
    result = llm.chat(conversation, use_tqdm=False, chat_template="{{ mood }}", chat_template_kwargs={"mood": "three"})
    assert result[0].prompt == "three"


def test_priorities(llm, core):
    llm.generate(["one", "two"], priority=[4, -2], use_tqdm=False)
    assert [request.priority for request in core.added] == [4, -2]


def test_metrics(llm):
    llm.generate("one", SamplingParams(max_tokens=2), use_tqdm=False)
    values = {metric.name: metric for metric in llm.get_metrics()}
    assert values["minivllm:num_preemptions"].value == 2
    assert values["minivllm:generation_tokens"].value == 2
    assert values["minivllm:num_requests_running"].value == 0
    assert values["minivllm:time_to_first_token_seconds"].count == 1
    assert values["minivllm:num_preemptions"].labels == {"model_name": "fake", "engine": "0"}


def test_progress_bar(llm, capsys):
    llm.generate(["one", "two"], SamplingParams(max_tokens=2))
    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown and "toks/s" in shown


def test_shutdown_and_context(llm, core):
    with llm:
        pass
    assert core.down


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_real_core(tmp_path, tokenizer, kv_cache_dtype):
    """A tiny random model: a pool so small that requests are preempted changes nothing, nor does the prefix cache."""
    from minivllm import LLM

    options = {"load_format": "dummy", "dtype": "float32", "cpu_threads": 1, "block_size": 4, "max_model_len": 64, "seed": 0}
    options["kv_cache_dtype"] = kv_cache_dtype
    prompts = [[i, *range(100, 112)] for i in range(40, 46)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
    answers = []
    for num_blocks in (200, 20):
        with LLM(str(write_tiny_model(tmp_path, tokenizer)), num_gpu_blocks_override=num_blocks, **options) as llm:
            results = llm.generate(prompts, params, use_tqdm=False)
            answers.append([result.outputs[0].token_ids for result in results])
            assert all(len(result.outputs[0].logprobs) == 24 for result in results)
            preemptions = {metric.name: metric for metric in llm.get_metrics()}["minivllm:num_preemptions"].value
            assert (preemptions > 0) == (num_blocks == 20)
            if num_blocks == 200:
                again = llm.generate(prompts[0], params, use_tqdm=False)[0]
                assert again.num_cached_tokens >= 12 and again.outputs[0].token_ids == answers[0][0]
    assert answers[0] == answers[1]


def test_unknown_option():
    llm_module = pytest.importorskip("minivllm.entrypoints.llm")
    with pytest.raises(ConfigError, match="block_size"):
        llm_module.LLM("folder", blok_size=4)


def test_import_is_light():
    """The package, the async engine and what it needs import neither torch nor transformers."""
    code = (
        "import sys, minivllm; minivllm.SamplingParams; minivllm.AsyncLLMEngine; minivllm.AsyncEngineArgs;"
        "import minivllm.text.chat_template; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_public_names():
    import minivllm

    assert set(minivllm.__all__) <= set(dir(minivllm))
    assert minivllm.RequestOutput.__name__ == "RequestOutput"
    with pytest.raises(AttributeError):
        minivllm.nothing  # noqa: B018
