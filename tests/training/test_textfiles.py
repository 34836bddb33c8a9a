"""Text files: decoded and cut without losing a character, wherever the blocks end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.errors import ResidlabError
from residlab.training import textfiles
from residlab.training.textfiles import blocks, holds, passages, separated, text_files

BLOCKS = st.lists(st.text(alphabet="a-\f\n", max_size=3), max_size=8)


@pytest.fixture(params=[1, 2, 3, 7])
def small_blocks(request, monkeypatch):
    monkeypatch.setattr(textfiles, "_BLOCK", request.param)


@given(parts=BLOCKS, separator=st.sampled_from(["-", "\f", "--", "-a-", "aa", "\n\n"]))
def test_separated_is_split(parts, separator):
    assert list(separated(parts, separator)) == "".join(parts).split(separator)


@given(parts=st.lists(st.text(alphabet="ab \n", max_size=40), max_size=8), size=st.integers(1, 20))
def test_passages_join_to_the_text_and_keep_their_size(parts, size):
    text = "".join(parts)
    found = list(passages(parts, size))
    assert "".join(found) == text
    assert found == list(passages([text], size))
    assert all(size <= len(one) <= 2 * size + 1 for one in found[:-1])
    assert all(one for one in found)


def test_a_passage_ends_at_a_blank_line_else_a_line_else_a_space():
    assert list(passages(["aaaa aa\naa\n\naaaa aaaa"], 6)) == ["aaaa aa\naa\n\n", "aaaa aaaa"]
    assert list(passages(["aaaa a aa\naa aaaa aaaa"], 6)) == ["aaaa a aa\n", "aa aaaa aaaa"]
    assert list(passages(["aaaa aaa aa aaaa aaaa"], 6)) == ["aaaa aaa ", "aa aaaa aaaa"]
    assert list(passages(["a" * 30], 6)) == ["a" * 12, "a" * 12, "a" * 6]


@pytest.mark.parametrize("text", ["", "plain", "Zürich, 日本 😀\r\n" * 5, "a\ufeffb"])
def test_blocks_join_to_the_text(tmp_path, small_blocks, text):
    file = tmp_path / "a.txt"
    file.write_bytes(text.encode())
    assert "".join(blocks(file)) == text
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert "".join(blocks(file)) == text


@pytest.mark.parametrize(
    ("content", "offset", "value"),
    [
        (b"abc\xffdef", 3, "ff"),
        ("日本日".encode() + b"\xe6\x97", 9, "e6"),
        (b"\x80", 0, "80"),
        ("é".encode("latin1"), 0, "e9"),
    ],
)
def test_a_byte_that_is_not_utf8_is_named_with_its_offset(tmp_path, small_blocks, content, offset, value):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ResidlabError, match=rf"a\.txt is not UTF-8: byte 0x{value} at offset {offset} \("):
        list(blocks(tmp_path / "a.txt"))


def test_a_separator_across_blocks_is_found(tmp_path, small_blocks):
    (tmp_path / "a.txt").write_text("one<|end|>two<|en|>")
    assert holds(tmp_path / "a.txt", "<|end|>")
    assert not holds(tmp_path / "a.txt", "<|end>")


def test_a_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(ResidlabError, match=r"gone\.txt cannot be read: No such file"):
        list(blocks(tmp_path / "gone.txt"))


def test_a_folder_gives_its_visible_text_files_in_order(tmp_path):
    for name in ("b.txt", "a/z.md", "a/.hidden.txt", ".git/x.md", "a.py", "c.TXT", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "folder.txt").mkdir()
    assert [file.relative_to(tmp_path).as_posix() for file in text_files(tmp_path)] == ["a.txt", "a/z.md", "b.txt"]
    with pytest.raises(ResidlabError, match=r"folder\.txt holds no text: a folder needs files named \*\.txt or \*\.md"):
        text_files(tmp_path / "folder.txt")
