"""nbgrader's configuration, read by its commands and by the formgrader when JupyterLab is started here.

Submissions are untrusted. nbgrader's own reading and execution of a submitted notebook are replaced by the course's grader. A
submission is read as text, its answers alone enter the released notebook, it runs in a sandbox, verdicts come from outside.
The classes are named, not imported, so that commands which grade nothing do not load them.
"""

from pathlib import Path

c = get_config()  # noqa: F821  (nbgrader provides it)
ROOT = Path(__file__).resolve().parent

c.CourseDirectory.course_id = "course"
c.CourseDirectory.root = str(ROOT)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "levels"
c.CourseDirectory.submitted_directory = "grading/submitted"
c.CourseDirectory.autograded_directory = "grading/autograded"
c.CourseDirectory.feedback_directory = "grading/feedback"
c.CourseDirectory.solution_directory = "grading/solution"
c.CourseDirectory.source_with_tests_directory = "grading/source_with_tests"
c.CourseDirectory.db_url = f"sqlite:///{ROOT / 'grading' / 'gradebook.db'}"
c.CourseDirectory.notebook_id = "lab"  # the case notebooks beside it are read, not graded
c.CourseDirectory.ignore = ["*.py", "*.pyc", "__pycache__", ".ipynb_checkpoints"]

c.Autograde.exporter_class = "autograder.nbgrader_plugin.SubmissionReader"
c.Autograde.sanitize_preprocessors = ["nbgrader.preprocessors.OverwriteCells", "nbgrader.preprocessors.CheckCellMetadata"]
c.Autograde.autograde_preprocessors = [
    "autograder.nbgrader_plugin.TrustedExecute",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.TrustedExecute.state = str(ROOT / "grading")  # the class secret and the recorded verdicts
c.TrustedExecute.sandbox = True  # False is for code that you trust; the report says so
c.TrustedExecute.sealed = True  # whether the level's own functions are withheld from submissions; False for open courseware
