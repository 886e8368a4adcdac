"""Run a program that the kernel kills when its parent dies: `die_with_parent.py PARENT_PID PROGRAM ARG...`

This file is executed by path with a bare interpreter (`python -I -S`), in the child, before the program
takes its place by exec, so it imports nothing of this project. It does the work of `preexec_fn`, which is not
safe in a parent that has threads. Only Linux has the mechanism (`prctl(PR_SET_PDEATHSIG)`, see prctl(2));
elsewhere the program just starts.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EXIT_PARENT_GONE = 125
EXIT_CANNOT_RUN = 126


def main(arguments: list[str]) -> int:
    parent_pid, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        # The parent may have died before the request was in place: then nobody would ever send the signal.
        if os.getppid() != parent_pid:
            return EXIT_PARENT_GONE
    try:
        os.execvp(program[0], program)  # noqa: S606 - the argument list comes from our own parent
    except OSError as error:
        sys.stderr.write(f"cannot run {program[0]}: {error.strerror}\n")
    return EXIT_CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
