"""What is escaped, and what the contract may use of Markdown."""

from __future__ import annotations

import pytest

from tools.make_docs_page import Html, element, join, line, prose


def test_text_is_escaped_and_html_is_not() -> None:
    """Whatever stands in the contract cannot become an element."""
    inner = element("code", "<a & b>")

    assert "<p>1 &lt; 2 <code>&lt;a &amp; b&gt;</code></p>" == element("p", "1 < 2 ", inner)


def test_a_value_of_an_attribute_is_escaped() -> None:
    """A quotation mark does not end it."""
    assert '<a href="&quot;x&quot;">y</a>' == element("a", "y", href='"x"')


def test_names_of_attributes_may_be_words_of_python_or_have_a_dash() -> None:
    """Underscores stand for what Python does not allow."""
    assert '<nav class="a" aria-label="b"></nav>' == element("nav", class_="a", aria_label="b")


def test_an_element_that_is_always_empty_has_no_end() -> None:
    assert '<meta charset="utf-8">' == element("meta", charset="utf-8")


def test_what_is_joined_is_html() -> None:
    """Joining twice escapes once."""
    assert "&lt;<br>" == join(join("<"), Html("<br>"))


@pytest.mark.parametrize(
    "text,expected",
    [
        ("plain & simple", "plain &amp; simple"),
        ("`a<b`", "<code>a&lt;b</code>"),
        ("**really** so", "<strong>really</strong> so"),
        ("`a`, **b**, `c`", "<code>a</code>, <strong>b</strong>, <code>c</code>"),
        ("`**a**`", "<code>**a**</code>"),
        ("`open and **open", "`open and **open"),
    ],
)
def test_a_line_has_code_and_strong(text: str, expected: str) -> None:
    """A mark without its other half is text."""
    assert expected == line(text)


def test_a_blank_line_ends_a_paragraph() -> None:
    assert "<p>a\nb</p><p>c</p>" == prose("a\nb\n\nc\n")


def test_lines_with_a_dash_are_a_list() -> None:
    """A line that goes on belongs to the point before it."""
    assert "<ul><li>a\n  b</li><li>c-d</li></ul>" == prose("- a\n  b\n- c-d")
