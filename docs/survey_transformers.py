"""Try every causal language model that transformers has by its modelling code: python docs/survey_transformers.py [TYPE ...]

A tiny random model of each type goes through the test that tests/model/test_transformers.py has for a few of them. What came
of it is written to transformers_models.json, where write_models.py finds it; types that are not named keep their entries.
"""

import json
import logging
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
import transformers

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "docs" / "transformers_models.json"
SECONDS = 60  # for one model
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

from model.conftest import start  # noqa: E402
from model.test_transformers import run, save  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

from minivllm.config import EngineArgs  # noqa: E402
from minivllm.errors import ConfigError  # noqa: E402
from minivllm.model.transformers.build import build  # noqa: E402


def attempt(model_type: str) -> str:
    """equal, refused: ..., or failed: ..."""
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
    signal.alarm(SECONDS)
    try:
        with tempfile.TemporaryDirectory() as folder:
            try:
                checkpoint = save(model_type, Path(folder))
            except Exception:  # no tiny model of it, but perhaps the configuration is refused
                only_configure(model_type, Path(folder))
                raise
            run(checkpoint, start, model_impl="transformers")
        return "equal"
    except ConfigError as e:
        return f"refused: {str(e).partition('not supported for now: ')[2] or e}"
    except Exception as e:
        if "-v" in sys.argv:
            traceback.print_exc()
        return f"failed: {type(e).__name__}: {(str(e).strip().splitlines() or [''])[0]}"
    finally:
        signal.alarm(0)


def only_configure(model_type: str, folder: Path) -> None:
    values = CONFIG_MAPPING[model_type]().to_diff_dict()
    values["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]
    (folder / "config.json").write_text(json.dumps(values, default=str))
    config = EngineArgs(model=str(folder), load_format="dummy", model_impl="transformers").resolve()
    build(config.model, config.spec.architecture, torch.float32)


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    named = [name for name in sys.argv[1:] if not name.startswith("-")]
    for model_type in named or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        results[model_type] = attempt(model_type)
        print(f"{model_type:28} {results[model_type]}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
