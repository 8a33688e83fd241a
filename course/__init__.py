"""One training round of a language-model agent, stage by stage. `course.exercises` lists what the notebooks teach.

Importing the package sets torch to one thread per process: for the small models of the course more threads are slower. Set the
environment variable COURSE_THREADS to another number, or call torch.set_num_threads yourself afterwards; `course doctor` shows it.
"""

import os

import torch

__version__ = "0.1.0"

THREADS = int(os.environ.get("COURSE_THREADS", "1"))
if THREADS < 1:
    raise ValueError(f"COURSE_THREADS must be at least 1; got {THREADS}")
torch.set_num_threads(THREADS)
