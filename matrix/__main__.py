"""`python -m matrix`, as the sessions of noxfile.py call it."""

from matrix.commands.cli import main

if __name__ == "__main__":
    main()
