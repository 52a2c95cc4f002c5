"""`python -m fairq` and the console script `fairq`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; ends the process with 0, 1 (it failed), 2 (it was asked wrongly) or 130 (ctrl-C)."""
    try:
        from fairq.cli.app import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
