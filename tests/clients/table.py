"""A table of calls and their results."""

import sys
import traceback


class Table:
    """Runs calls one by one and prints a line for each."""

    def __init__(self):
        self.passed = self.failed = 0

    def call(self, client, what, check):
        """`check` makes a call and says with `assert` what must hold of its answer."""
        try:
            check()
            self.passed += 1
            result = "pass"
        except Exception:  # noqa: BLE001: whatever a client raises is a failed call
            self.failed += 1
            result = "FAIL"
            traceback.print_exc()
        print(f"| {client:<14} | {what:<46} | {result} |", flush=True)

    def end(self):
        """Prints the sum, and ends the program."""
        print(f"{self.passed} of {self.passed + self.failed} calls pass")
        sys.exit(self.failed > 0)
