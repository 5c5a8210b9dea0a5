"""The Python blocks of the README and of the pages under docs/ run, page by page, top to bottom."""

import re
from pathlib import Path

import pytest

import elimination_orders
import graphax_lapl

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if BLOCK.search(page.read_text(encoding="utf-8"))]


def code(page: Path) -> str:
    """The page with everything but its Python blocks blanked, so that line numbers stay."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for offset, line in enumerate(block[1].splitlines()):
            lines[first + offset] = line
    return "\n".join(lines)


@pytest.mark.smoke
@pytest.mark.usefixtures("standard_promotion", "float32")
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # verdicts of "autotune"
    exec(compile(code(page), str(page), "exec"), {"__name__": "documented_example"})


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_reference_lists_everything_offered():
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    packages = (elimination_orders, graphax_lapl)
    offered = [f"{package.__name__}.{name}" for package in packages for name in package.__all__]
    assert sorted(listed) == sorted(offered)


def test_relative_links_lead_somewhere():
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_line_numbers_survive_extraction(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\na = 1\n\nb = 2\n```\nmore\n```\nnot python\n```\n")
    assert code(page).splitlines()[:6] == ["", "", "", "a = 1", "", "b = 2"]
    assert "not python" not in code(page)
