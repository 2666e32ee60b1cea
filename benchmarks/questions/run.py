"""Ask ``ddlbench recommend`` random questions, and judge every answer.

    python benchmarks/questions/run.py [--questions N] [--seed N] [--out FILE] [--keep FOLDER]

In a temporary project with made-up inputs, each question is asked twice in this process, for the
screen of 80 columns and for JSON; some are asked once more as a process of their own, which is
timed. Status 1 if anything is wrong with an answer.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import itertools
import json
import os
import random
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from judge import Fault, Output
    from questions import Question

PROJECT = Path(__file__).resolve().parents[2]
COLUMNS = "80"
_PROCESSES = 20
_EXAMPLES = 3
_LONGEST_SIGHT = 400
Took = tuple[float, float]  # seconds on the wall clock and on the processor


@dataclass(frozen=True)
class Answer:
    """A question, what came of it, and what is wrong with that."""

    question: Question
    screen: Output
    as_json: Output
    faults: list[Fault]


def main() -> None:
    """Make the project, ask, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--questions", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--seed", type=int, default=38, help="of the draw (default 38)")
    parser.add_argument(
        "--processes", type=int, default=_PROCESSES,
        help=f"so many also as a process, timed (default {_PROCESSES})",
    )  # fmt: skip
    parser.add_argument(
        "--examples", type=int, default=_EXAMPLES, help=f"of each fault (default {_EXAMPLES})"
    )
    parser.add_argument("--out", type=Path, help="a CSV file: a row a question")
    parser.add_argument("--keep", type=Path, help="make the project in this new folder, leave it")
    parser.add_argument("--source", type=Path, default=PROJECT, help="another checkout to ask")
    arguments = parser.parse_args()
    source, out = arguments.source.resolve(), arguments.out and arguments.out.resolve()
    if arguments.keep:
        arguments.keep.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        folder = arguments.keep and arguments.keep.resolve()
        if folder is None:
            named = tempfile.TemporaryDirectory(prefix="ddlbench-questions-")
            folder = Path(stack.enter_context(named))
        stack.enter_context(contextlib.chdir(folder))
        _prefer(source, folder)
        answers, took = _run(arguments, folder, source)
    print("\n".join(report(answers, took, arguments, folder, source)))
    if out:
        write(out, answers)
    sys.exit(any(answer.faults for answer in answers))


def _prefer(source: Path, folder: Path) -> None:
    """Import ddlbench from a checkout, and networks of the user from the project."""
    sys.path[:0] = [str(source / "src"), str(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    os.environ["COLUMNS"] = COLUMNS
    import ddlbench  # noqa: PLC0415 - not before it is known which

    if source not in Path(ddlbench.__file__).resolve().parents:
        sys.exit(f"ddlbench was imported from {ddlbench.__file__}, not from {source}")


def _run(
    arguments: argparse.Namespace, folder: Path, source: Path
) -> tuple[list[Answer], list[Took]]:
    """The answers, and what those took that were processes of their own."""
    from project import make_project  # noqa: PLC0415 - imports ddlbench
    from questions import draw  # noqa: PLC0415

    make_project(folder, source)
    answers = []
    for question in draw(arguments.questions, arguments.seed):
        answers.append(_ask(question))
        _say(f"\r{len(answers)} of {arguments.questions} questions")
    right = [place for place, answer in enumerate(answers) if answer.screen.code == 0]
    chosen = random.Random(arguments.seed).sample(right, min(arguments.processes, len(right)))
    took: list[Took] = []
    for place in sorted(chosen):
        answers[place], took_s = _ask_again(answers[place])
        took.append(took_s)
        _say(f"\r{len(took)} of {len(chosen)} processes      ")
    _say("\r" + " " * 40 + "\r")
    return answers, took


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)


def _ask(question: Question) -> Answer:
    import judge  # noqa: PLC0415 - imports ddlbench

    screen = in_process(("recommend", *question.arguments))
    as_json = in_process(("recommend", *question.arguments, "--json"))
    return Answer(question, screen, as_json, judge.faults_of(question, screen, as_json))


def in_process(words: Sequence[str]) -> Output:
    """Run the command here, as the console script would."""
    from judge import Output  # noqa: PLC0415 - imports ddlbench

    from ddlbench.cli import main as command  # noqa: PLC0415

    out, err, code, crash = io.StringIO(), io.StringIO(), 0, ""
    before = sys.argv
    sys.argv = ["ddlbench", *words]
    began, began_cpu = time.perf_counter(), time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        code, crash = 1, _last_words(error)
    finally:
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        sys.argv = before
    return Output(code, out.getvalue(), err.getvalue(), crash, took_s, cpu_s)


def _last_words(error: Exception) -> str:
    """The exception, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{at}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _ask_again(answer: Answer) -> tuple[Answer, Took]:
    """Ask in a process of its own; its screen should be the same."""
    command = [sys.executable, "-m", "ddlbench.cli", "recommend", *answer.question.arguments]
    began, began_cpu = time.perf_counter(), _cpu_s_of_children()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = (time.perf_counter() - began, _cpu_s_of_children() - began_cpu)
    faults = list(answer.faults)
    if (done.returncode, done.stdout) != (answer.screen.code, answer.screen.out):
        pairs = itertools.zip_longest(done.stdout.splitlines(), answer.screen.out.splitlines())
        first = next(((a, b) for a, b in pairs if a != b), ("", ""))
        seen = f"status {done.returncode}, first line that differs: {first[0]!r}, not {first[1]!r}"
        faults.append(("process", f"{seen} {done.stderr.strip()[-200:]}"))
    return Answer(answer.question, answer.screen, answer.as_json, faults), took


def _cpu_s_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(
    answers: Sequence[Answer],
    took: Sequence[Took],
    arguments: argparse.Namespace,
    folder: Path,
    source: Path,
) -> list[str]:
    """The counts, the times, and the first examples of each fault."""
    from judge import FAULTS  # noqa: PLC0415 - imports ddlbench

    kinds = Counter(answer.question.kind for answer in answers)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    faulty = sum(bool(answer.faults) for answer in answers)
    counted = Counter(name for answer in answers for name in {name for name, _ in answer.faults})
    lines = textwrap.wrap(
        f"{len(answers)} questions, seed {arguments.seed}: {counts}", int(COLUMNS)
    )
    lines += ["", f"{len(answers) - faulty:6} right", f"{faulty:6} with a fault"]
    lines += [f"{counted[name]:10} {name:9} {what}" for name, what in FAULTS.items()]
    others = {name for name in counted if name not in FAULTS}
    lines += [f"{counted[name]:10} {name}" for name in sorted(others)]
    answered = [answer for answer in answers if answer.screen.code == 0]
    nothing = sum(_document(answer).get("recommended") is None for answer in answered)
    lines += ["", f"{nothing} of {len(answered)} answers recommend nothing, which is no fault"]
    lines += ["", *times(answers, took)]
    if faulty:
        lines += ["", *_examples(answers, arguments, folder, source)]
    return lines


def times(answers: Sequence[Answer], took: Sequence[Took]) -> list[str]:
    """How long an answer took on the wall clock and on the processor, here and as a process."""
    here = [(a.screen.seconds, a.screen.cpu_s) for a in answers if a.screen.code == 0]
    lines = [f"{'seconds of an answer':24}  n   median  quartiles        longest"]
    for what, pairs in (("in this process", here), ("as a process", took)):
        for clock, values in zip(("wall", "CPU"), zip(*pairs, strict=True), strict=False):
            if len(values) > 1:
                low, middle, high = statistics.quantiles(values, n=4)
                lines.append(
                    f"{f'{what}, {clock}':23}{len(values):4}  {middle:7.3f}  "
                    f"{low:7.3f} {high:7.3f}  {max(values):7.3f}"
                )
    return lines


def _examples(
    answers: Sequence[Answer], arguments: argparse.Namespace, folder: Path, source: Path
) -> Iterator[str]:
    """The first examples of each fault, and how to see them again."""
    from judge import FAULTS  # noqa: PLC0415 - imports ddlbench

    if not arguments.keep:
        yield from textwrap.wrap("To repeat one, run this again with --keep FOLDER.", int(COLUMNS))
    else:
        python_path = os.pathsep.join((str(source / "src"), str(folder)))
        yield "To repeat one:"
        yield f"  cd {shlex.quote(str(folder))}"
        yield f"  export COLUMNS={COLUMNS} PYTHONPATH={shlex.quote(python_path)}"
    for name in FAULTS:
        of_it = [
            (answer.question, sight)
            for answer in answers
            for fault, sight in answer.faults
            if fault == name
        ]
        # Those that differ in more than numbers.
        distinct = {re.sub(r"\d+", "", sight): (sight, question) for question, sight in of_it[::-1]}
        for sight, question in list(reversed(distinct.values()))[: arguments.examples]:
            text = sight if len(sight) <= _LONGEST_SIGHT else f"{sight[:_LONGEST_SIGHT]}..."
            yield ""
            first = f"{name} (question {question.number}): {text}"
            yield from textwrap.wrap(first, int(COLUMNS), subsequent_indent="  ")
            yield from command_lines(question)


def command_lines(question: Question) -> list[str]:
    """The command of a question, broken as a shell reads it."""
    words = [shlex.quote(word) for word in question.arguments]
    text = " ".join(["ddlbench recommend", *words])
    lines = textwrap.wrap(
        text, int(COLUMNS) - 4, initial_indent="  ", subsequent_indent="    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def write(path: Path, answers: Sequence[Answer]) -> None:
    """A row a question."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("question", "kind", "wrong", "rc", "seconds", "recommended", "candidates",
             "not_ranked", "faults", "first_fault")
        )  # fmt: skip
        for answer in answers:
            document = _document(answer)
            question = answer.question
            writer.writerow((
                question.text, question.kind, question.wrong, answer.screen.code,
                f"{answer.screen.seconds:.4f}", document.get("recommended") or "",
                len(document.get("candidates", ())), len(document.get("not_ranked", ())),
                " ".join(dict.fromkeys(name for name, _ in answer.faults)),
                answer.faults[0][1] if answer.faults else "",
            ))  # fmt: skip


def _document(answer: Answer) -> dict[str, Any]:
    try:
        document = json.loads(answer.as_json.out)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


if __name__ == "__main__":
    main()
