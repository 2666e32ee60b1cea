"""Text of a tool as somebody captured it: its bytes, and what stands before each line."""

import codecs
import re

import pytest

from ddlbench.common.captured_text import decoded
from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.nvidia_programs import plain_lines, printed_number

KNOWN = re.compile(r"(?:Devices: \d+|Matrix|Sum)$")
PRINTED = ["Devices: 2", "", "Matrix", "   D\\D     0      1 ", "     0 100.00 101.00", "Sum"]
PLAIN = [line.strip() for line in PRINTED]


def captured(before, lines=PRINTED):
    """``before(n)`` stands before the n-th line."""
    return "\n".join(f"{before(number)}{line}" for number, line in enumerate(lines, start=1))


@pytest.mark.parametrize(
    "before",
    [
        lambda n: "",
        lambda n: "0: ",
        lambda n: " 3: ",
        lambda n: "[1,0]<stdout>:",
        lambda n: "[1,0]<stdout>: ",
        lambda n: "[prterun-node1-77@1,0]<stdout>: ",
        lambda n: "node-01.cluster: ",
        lambda n: "gpu-1  | ",
        lambda n: "(worker pid=77) ",
        lambda n: "[rank0]: ",
        lambda n: "> ",
        lambda n: ">> ",
        lambda n: "* ",
        lambda n: "\t",
        lambda n: "> " if n > 1 else "",
        lambda n: f"2024-05-01 12:00:{n:02} ",
        lambda n: f"2024-05-01T12:00:0{n}.1234567Z ",
        lambda n: f"[2024-05-01 12:00:0{n},123] INFO: ",
        lambda n: f"2024/05/01 23:59:5{n} 0: ",
        lambda n: f"0: 12:00:0{n // 3} ",
        lambda n: f"[12:00:0{n}] ",
        lambda n: f"Wed May  1 12:00:0{n} 2024 ",
        lambda n: f"Wed May  1 12:00:0{n} UTC 2024: ",
        lambda n: f"May  1 12:00:0{n} node1 job[77]: ",
        lambda n: f"Wed May  1 12:00:0{n} 2024<stdout>:",
        lambda n: f"1714560000.{n:06} ",
        lambda n: f"17145600{n:02} ",
        lambda n: f"[    {n}.345678] ",
        lambda n: f"[1m{n // 2}s] ",
        lambda n: f"{n:6}\t",  # cat -n
        lambda n: f"{n + 98}: ",  # grep -n
        lambda n: f"out.txt-{n}- ",
    ],
)
def test_what_stands_before_each_line_is_removed(before):
    assert plain_lines(captured(before), KNOWN, "out") == PLAIN


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"])
def test_line_ends_and_colours(end):
    text = captured(lambda n: "\x1b[32m0: \x1b[0m").replace("\n", end)
    assert plain_lines(text, KNOWN, "out") == PLAIN
    web = captured(lambda n: "\xa0\xa0\ufeff")
    assert plain_lines(web, KNOWN, "out") == PLAIN


def test_a_line_of_another_origin_stays_whole():
    text = captured(lambda n: "0: ") + "\nsrun: error: node 1\n1: Bye"
    assert plain_lines(text, KNOWN, "out") == [*PLAIN, "srun: error: node 1", "1: Bye"]


@pytest.mark.parametrize(
    ("first", "second"), [("0: ", "1: "), ("[1,0]<stdout>:", "[1,1]<stdout>:"), ("a: ", "b: ")]
)
@pytest.mark.parametrize("is_mixed", [True, False])
def test_lines_of_several_tasks_are_refused(first, second, is_mixed):
    here, there = (captured(lambda n, tag=tag: tag).split("\n") for tag in (first, second))
    lines = [line for pair in zip(here, there, strict=True) for line in pair]
    text = "\n".join(lines if is_mixed else here + there)
    with pytest.raises(
        ConfigError, match=r"^out line \d+: .* keep the lines of one task$"
    ) as caught:
        plain_lines(text, KNOWN, "out")
    assert f"{first.strip()!r} and with {second.strip()!r}" in str(caught.value)


@pytest.mark.parametrize("sign", ["\r", " ", "[", "0", "0.", "1 ", "\x1b]", "12:00:00 "])
def test_endless_lines_are_soon_done(sign):
    assert plain_lines(sign * 200_000 + "\nSum", KNOWN, "out")[-1] == "Sum"


TEXT = "Devices: 2\nTesla\xae\n"


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode(),
        codecs.BOM_UTF8 + TEXT.encode(),
        *(mark + TEXT.encode(name) for mark, name in (
            (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
            (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
            (b"", "utf-16-le"), (b"", "utf-16-be"),
        )),
    ],
)  # fmt: skip
def test_text_is_decoded_whatever_its_encoding(content):
    assert decoded(content) == TEXT


def test_bytes_that_are_no_text_are_decoded_somehow():
    assert decoded(b"Matrix \xff\xfe") == "Matrix \ufffd\ufffd"
    assert decoded(b"") == ""
    assert len(decoded(bytes(range(256)))) == 256


@pytest.mark.parametrize(
    ("word", "value"),
    [("1.50", 1.5), ("-2", -2.0), ("1e3", 1000.0), ("nan", None), ("-nan(ind)", None),
     ("inf", None), ("1.#INF", None), ("N/A", None)],
)  # fmt: skip
def test_numbers_as_c_prints_them(word, value):
    assert printed_number(word) == value


@pytest.mark.parametrize("word", ["", "fast", "1_0", "1,5", "0x10", "--1", "\u0663", "nano"])
def test_other_words_are_no_numbers(word):
    with pytest.raises(ValueError, match="^"):
        printed_number(word)
