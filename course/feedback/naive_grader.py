"""A grader with its checks in the student's own process, to be attacked, and the same grader with only values leaving that process.

    naive     helpers, then the student's cell, then the checks: one process, one namespace, and the score is what that process prints
    trusted   the functions are called on other inputs inside a sandbox; their values come out as JSON and are compared out here

Both grade the same three functions, two cases each. Where the checker's code, variables, imports and output belong to the one who is
checked, no check in it means anything. The course's own grader has the second form.
"""

import math
import random
import re
import subprocess
import sys
from typing import Any

from course.envs.sandbox import Failed, Finished, Sandbox

NAMES = ("logsumexp", "discounted", "kl")
POSSIBLE = 6
SECONDS = 10
_SCORE = re.compile(r"^score (\d+) of \d+$", re.MULTILINE)


def cases(seed: int) -> list[tuple[str, list[Any], float]]:
    """(function, arguments, expected value), POSSIBLE of them.

    logsumexp(x) = log sum_i exp(x_i);  discounted(r, gamma) = sum_t gamma^t r_t;  kl(p, q) = sum_i p_i log(p_i / q_i)
    """
    draw, drawn = random.Random(f"naive grader {seed}"), []
    for _ in range(POSSIBLE // len(NAMES)):
        x = [round(draw.uniform(-2, 2), 3) for _ in range(4)]
        rewards, gamma = [round(draw.uniform(-1, 1), 3) for _ in range(5)], round(draw.uniform(0.5, 0.99), 3)
        p, q = (
            [weight / sum(weights) for weight in weights] for weights in ([draw.random() for _ in range(3)] for _ in range(2))
        )
        drawn += [
            ("logsumexp", [x], math.log(math.fsum(map(math.exp, x)))),
            ("discounted", [rewards, gamma], math.fsum(gamma**t * r for t, r in enumerate(rewards))),
            ("kl", [p, q], math.fsum(a * math.log(a / b) for a, b in zip(p, q))),
        ]
    return drawn


# A notebook as one program: a cell of helpers, the student's cell (from stdin), the cells with the checks.
NAIVE = f"""
import math, sys
points = 0

def check(name, arguments, expected):
    global points
    try:
        got = globals()[name](*arguments)
        if got == expected or math.isclose(got, expected, rel_tol=1e-9):
            points += 1
    except Exception as error:
        print(name, "failed:", type(error).__name__)

try:
    exec(compile(sys.stdin.read(), "cell", "exec"), globals())
except Exception as error:
    print("the cell failed:", type(error).__name__)

for name, arguments, expected in {cases(0)!r}:
    check(name, arguments, expected)
print(f"score {{points}} of {POSSIBLE}")
"""


def naive_points(submission: str, sandbox: Sandbox | None = None) -> int:
    """The points that checks in the student's process hand out: whatever score that process printed last.

    Shapes and units: submission: the text of a cell that should define logsumexp, discounted and kl; result 0..6 for honest ones.
    sandbox: where the process runs. None: an interpreter of its own with your rights, for texts that you wrote yourself.
    Reduces to: trusted_points for a submission that leaves the checker alone. No score printed, or no end within 10 s: 0.
    Source: checks in cells of the graded notebook, as in plain nbgrader.
    """
    if sandbox is not None:
        done = sandbox.run(NAIVE, stdin=submission)
        printed = done.stdout if isinstance(done, Finished) else ""
    else:
        try:
            command = [sys.executable, "-I", "-c", NAIVE]
            printed = subprocess.run(command, input=submission.encode("utf-8", "replace"), capture_output=True, timeout=SECONDS)
            printed = printed.stdout.decode("utf-8", "replace").replace("\r\n", "\n")
        except subprocess.TimeoutExpired:
            printed = ""
    scores = _SCORE.findall(printed)
    return int(scores[-1]) if scores else 0


def trusted_points(submission: str, sandbox: Sandbox, seed: int = 1) -> int:
    """One point for each value that is right. The expected values, the comparison and the count never enter the student's process.

    Shapes and units: submission: as naive_points; seed: of the inputs, which are not those of the naive grader (seed 0) and which a
    submission can't have seen; result 0..6. Right: a JSON number, true excluded, within 1e-9 of the expected value, relatively.
    Reduces to: 0 for every submission whose functions do not give these values, whatever else its process does or prints.
    Raises: ValueError for seed 0; RuntimeError if the sandbox itself fails: nothing was learnt about the submission.
    """
    if seed == 0:
        raise ValueError("seed must not be 0: the naive grader shows those cases to the submission; got 0")
    drawn, points = cases(seed), 0
    for name in NAMES:
        inputs, expected = zip(*((arguments, value) for of, arguments, value in drawn if of == name))
        said = sandbox.call(submission, name, inputs)
        if isinstance(said, Failed) and said.reason == "sandbox":
            raise RuntimeError(f"sandbox must run the submission to grade it; got {said.detail}")
        answers = [] if isinstance(said, Failed) else [answer.get("value") for answer in said]
        points += sum(_right(got, value) for got, value in zip(answers, expected))
    return points


def _right(got: Any, expected: float) -> bool:
    # An integer of JSON may be too large for a float, and comparing it must not end the grader.
    return type(got) in (int, float) and abs(got) < 1e12 and math.isclose(got, expected, rel_tol=1e-9)


KINDS = ("checker", "points", "equal", "import", "frame", "exit")
_ANY = "logsumexp = discounted = kl = lambda *_: {}\n"


def forged_submission(kind: str = "checker") -> str:
    """A cell that computes nothing: all points from the naive grader, none from the trusted one.

        checker   replaces the function that checks            equal   returns an object that equals everything
        points    sets the variable that counts                import  replaces math.isclose, which the checks call
        frame     reads the expected value in its caller       exit    prints a score and ends before the checks begin

    Raises: ValueError for another kind.
    """
    texts = {
        "checker": "def check(*_):\n    global points\n    points += 1\n",
        "points": f"def logsumexp(*_):\n    global points\n    points = {POSSIBLE}\ndiscounted = kl = logsumexp\n",
        "equal": "class Equal:\n    def __eq__(self, other):\n        return True\n" + _ANY.format("Equal()"),
        "import": "import math\nmath.isclose = lambda *_, **__: True\n" + _ANY.format("0.0"),
        "frame": "import sys\n" + _ANY.format("sys._getframe(1).f_locals['expected']"),
        "exit": f"import sys\nprint('score {POSSIBLE} of {POSSIBLE}')\nsys.exit()\n",
    }
    if kind not in texts:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    return texts[kind]
