"""`python -m jaxafl`, the same as the command `jaxafl`."""

from jaxafl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
