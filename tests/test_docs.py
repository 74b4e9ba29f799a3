"""What the documentation says is true: options.md is as declared, and the files that README and docs point to exist."""

import re
import runpy
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def test_options_page_is_up_to_date() -> None:
    written = runpy.run_path(str(REPOSITORY / "docs/write_options.py"))["text"]()
    assert (REPOSITORY / "docs/options.md").read_text() == written, "run: python docs/write_options.py"


def test_models_page_is_up_to_date() -> None:
    """It names every architecture of the registry and every row of the tests; that they pass is those tests' affair."""
    written = runpy.run_path(str(REPOSITORY / "docs/write_models.py"))["text"]()
    assert (REPOSITORY / "docs/models.md").read_text() == written, "run: python docs/write_models.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert not [t for t in targets if "://" not in t and not (page.parent / t).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_flags_in_texts_exist(page: Path) -> None:
    from_declarations = set(re.findall(r"--[a-z][a-z-]+", (REPOSITORY / "docs/options.md").read_text()))
    commands = re.findall(r"minivllm serve[^`\n]*", page.read_text())
    used = {flag for command in commands for flag in re.findall(r"--[a-z][a-z-]+", command)}
    assert used <= from_declarations | {"--config", "--help"}
