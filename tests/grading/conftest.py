"""The two small levels of the grading tests: one is sent through the sandbox, one through nbgrader."""

from fake import tiny  # noqa: F401
from toy_class import prepared, toys  # noqa: F401
