"""The first program inside the sandbox: set the limits, hand out the results folder, then let papermill execute the notebook.

Nothing it says is believed outside: that a notebook ran to its end is no evidence of anything.
"""

import json
import logging
import os
import resource
import socket
import sys

KERNEL_DIED = 3


def main(settings_path: str, channel: str) -> int:
    with open(settings_path) as file:
        settings = json.load(file)
    for name, value in settings["limits"].items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    with socket.socket(fileno=int(channel)) as outside:
        folder = os.open(settings["outputs"], os.O_RDONLY | os.O_DIRECTORY)
        socket.send_fds(outside, [b"ready"], [folder])
        os.close(folder)
    logging.disable(logging.WARNING)
    import papermill
    from nbclient.exceptions import DeadKernelError

    def seconds(cell) -> float:
        """0 is no limit: the export keeps its own, and an interrupt there would cost the functions that come after a slow one."""
        tags = cell.metadata.get("tags", [])
        return 0 if "export" in tags else settings["student_seconds" if "student" in tags else "given_seconds"]

    try:
        papermill.execute_notebook(
            settings["notebook"], None, parameters=settings["parameters"], progress_bar=False, kernel_name="python3",
            cwd=os.getcwd(), start_timeout=60, timeout_func=seconds, interrupt_on_timeout=True, allow_errors=True,
        )  # fmt: skip
    except DeadKernelError:
        return KERNEL_DIED
    except Exception as error:  # with allow_errors papermill runs everything and raises at the end
        print(type(error).__name__, str(error)[:300].replace("\n", " "))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
