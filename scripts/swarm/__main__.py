"""`python -m swarm`: the demo, with somebody who listens to Ctrl-C before anything that takes time."""

from __future__ import annotations

import sys

from swarm.interruption import Interruption


def main() -> int:
    interruption = Interruption()
    interruption.install()
    try:
        with interruption.ending():
            from swarm import demo

            return demo.main(interruption)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        interruption.end()


if __name__ == "__main__":
    code = main()
    # A Ctrl-C within an eval, as imports have many, would make Python end itself by SIGINT, whoever caught it, unless another one ends well.
    eval("0")
    sys.exit(code)
