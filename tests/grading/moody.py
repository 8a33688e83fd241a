"""A grader that meets with accidents, for worker processes: light, because each of them imports it."""

import os
import time

from autograder.grade import Report, Row


def moody(notebook, level, student, *, secret, sandbox, sealed):
    if student == "dies":
        os._exit(7)
    if student == "raises":
        raise OSError("disk full")
    if student == "sleeps":
        time.sleep(60)
    return Report(
        student, level, "ok", (Row("double", "L0.01", "case", "Doubles", 3.0, 3.0, True, False, ""),), (), 0.1, "digest", ""
    )
