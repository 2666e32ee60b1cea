import pandas as pd
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.colors import to_rgb
from report_factory import SITE_NAME, write

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import STRATEGIES
from ddlbench.planning.labels import network_label, strategy_label
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report import fonts
from ddlbench.report.labels import strategy_look, variant_labels
from ddlbench.report.measurements import make_tables
from ddlbench.report.style import new_figure, save_figure, shade, style, text_width_mm, wrapped
from ddlbench.report.terminal import summary_lines, telling_apart, with_telling_options


def test_every_strategy_of_ours_has_a_look_of_its_own():
    looks = {name: strategy_look(name) for name in STRATEGIES}
    for part in ("colour", "marker"):
        users: dict[str, list[str]] = {}
        for name, look in looks.items():
            users.setdefault(getattr(look, part), []).append(name)
        shared = [names for names in users.values() if len(names) > 1]
        assert not shared, f"give the descriptor of one of them a {part} of its own"


def test_a_strategy_from_elsewhere_has_always_the_same_look():
    name = "some_package.module:Thing"
    assert strategy_look(name) == strategy_look(name)
    assert len(to_rgb(strategy_look(name).colour)) == 3
    assert strategy_label(name) == "Thing"


def test_a_shade_is_between_its_colour_and_white():
    assert shade("#0072B2", 0.0) == "#0072b2"
    assert shade("#0072B2", 1.0) == "#ffffff"


def test_networks_are_written_as_in_papers():
    assert network_label("resnet152") == "ResNet-152"
    assert network_label("vgg11") == "VGG-11"
    assert network_label("mobilenetv2") == "MobileNetV2"
    assert network_label("mine.nets:tiny") == "tiny"


def _summary(*configurations):
    rows = []
    for configuration in configurations:
        dataset, network, strategy, geometry, _ = configuration.split("/")
        rows.append((configuration, dataset, network, strategy, geometry))
    names = ["configuration", "dataset", "network", "strategy", "geometry"]
    return pd.DataFrame(rows, columns=names)


def test_only_what_differs_within_a_group_is_a_variant():
    summary = _summary(
        "mnist/vgg11/gpipe/1x2/batch_size=16",
        "mnist/vgg11/gpipe/1x2/batch_size=16+chunks=8",
        "imagenet/vgg11/ddp/1x2/batch_size=4",
        "mnist/vgg11/ddp/1x2/batch_size=16",
        "mnist/vgg11/horovod/1x2/batch_size=16+precision=bf16",
        "mnist/vgg11/horovod/1x2/batch_size=16",
    )
    assert list(variant_labels(summary)) == [
        "chunks 4",
        "chunks 8",
        "",
        "",
        "precision bf16",
        "precision fp32",
    ]


def test_what_a_strategy_ran_as_is_one_variant_unless_a_network_has_several():
    summary = _summary(
        "imagenet/vgg16/pipedream/1x4/batch_size=32",
        "imagenet/resnet50/pipedream/1x4/batch_size=32",
        "imagenet/resnet50/pipedream/2x4/batch_size=32",
        "imagenet/vgg16/gpipe/1x4/batch_size=32",
        "imagenet/vgg16/gpipe/1x4/batch_size=64",
    )
    failed, updates = "", ["96 samples an update", "64 samples an update"]
    summary = summary.assign(ran_as=[*updates, failed, "one thing", "another"])
    assert list(variant_labels(summary, without=("batch_size",))) == [
        *["64 or 96 samples an update"] * 3,
        "one thing",
        "another",
    ]


def test_the_terminal_shows_options_only_where_they_tell_rows_apart():
    summary = _summary(
        "imagenet/vgg16/pipedream/1x4/a",
        "imagenet/resnet50/pipedream/1x4/b",
        "imagenet/vgg16/gpipe/1x4/c",
        "imagenet/vgg16/gpipe/1x4/d",
    ).assign(
        batch_size=32, fabric="default", precision="fp32", settings=["long", "short", "", ""],
        options=["balance=15+25", "balance=10+13", "chunks=4", "chunks=8"], ran_as="",
    )  # fmt: skip
    assert telling_apart(summary) == []
    assert list(with_telling_options(summary)["options"]) == ["", "", "chunks=4", "chunks=8"]


def test_settings_that_differ_are_columns_of_the_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    cell = Cell("mnist", "vgg11", "sequential", batch_size=16, epochs=1, seed=7, warmup_steps=3)
    cells = [cell, cell.with_(learning_rate=1e30), cell.with_(warmup_steps=5)]
    for each in cells:
        write(tmp_path, each)
    rows = [MatrixRow(each, each.id, None) for each in cells]
    make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
    heading, *lines = [line.split() for line in summary_lines(tmp_path / "tables")[1:4]]
    assert heading[3:5] == ["warmup_steps", "learning_rate"]
    assert [line[3:5] for line in lines] == [["3", "0.01"], ["3", "1e+30"]]


def test_wrapped_lines_fit_and_lose_nothing():
    text = "torchgpipe runs its CPU partitions one after the other: no speed-up can show here"
    lines = wrapped(text, 40.0)
    assert " ".join(lines) == text
    assert all(text_width_mm(line) <= 40.0 for line in lines)
    name = "a-site-with-a-name-that-is-as-long-as-those-of-some-clusters"
    lines = wrapped(f"Site {name}.", 40.0)
    assert "".join(lines).replace("Site", "Site ") == f"Site {name}."
    assert all(text_width_mm(line) <= 40.0 for line in lines)


def test_signs_that_no_font_has_are_reported_once(tmp_path, caplog, recwarn, monkeypatch):
    monkeypatch.setattr("ddlbench.report.style._REPORTED", set())
    for name in ("first", "second"):
        with style():
            figure = new_figure(40, 20)
            figure.text(0.1, 0.5, "Größe \U000f0124\U000f0123")
            save_figure(figure, tmp_path / f"{name}.png")
    assert [record.message for record in caplog.records] == [
        "no font of this machine has \U000f0123\U000f0124: each is drawn as a box"
    ]
    assert not list(recwarn)


@pytest.fixture
def font_of_signs(tmp_path, monkeypatch):
    """An installed font of two signs, each as wide as its size."""
    builder = FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "first", "second"])
    builder.setupCharacterMap({0xF0125: "first", 0xF0126: "second"})
    pen = TTGlyphPen(None)
    for move, corner in [(pen.moveTo, (0, 0))] + [
        (pen.lineTo, at) for at in ((0, 1000), (1000, 1000), (1000, 0))
    ]:
        move(corner)
    pen.closePath()
    square = pen.glyph()
    builder.setupGlyf(dict.fromkeys((".notdef", "first", "second"), square))
    builder.setupHorizontalMetrics(dict.fromkeys((".notdef", "first", "second"), (1000, 0)))
    builder.setupHorizontalHeader(ascent=1000, descent=0)
    builder.setupNameTable({"familyName": "Two Signs", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    path = tmp_path / "two-signs.ttf"
    builder.save(path)
    manager = fonts.fontManager
    monkeypatch.setattr(manager, "ttflist", list(manager.ttflist))
    manager.addfont(path)
    fonts._further.cache_clear()
    yield "Two Signs"
    fonts._further.cache_clear()


def test_signs_are_of_a_font_of_the_machine_that_has_them(tmp_path, caplog, font_of_signs):
    assert fonts.families_of("数 Größe")[0] == fonts.FAMILY
    assert fonts.families_of("Größe") == (fonts.FAMILY,)
    assert fonts.families_of("Größe \U000f0125\U000f0126") == (fonts.FAMILY, font_of_signs)
    side_mm = 7 / 72 * 25.4
    assert text_width_mm("\U000f0125\U000f0126") == pytest.approx(2 * side_mm, rel=0.01)
    with style():
        figure = new_figure(40, 20)
        plain, other = figure.text(0.1, 0.5, "Größe"), figure.text(0.1, 0.2, "Größe \U000f0125")
        save_figure(figure, tmp_path / "figure.png")
    assert plain.get_fontfamily() == [fonts.FAMILY]
    assert other.get_fontfamily() == [fonts.FAMILY, font_of_signs]
    assert not caplog.records
