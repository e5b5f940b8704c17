"""`python -m bascule.broker` is `bascule server`."""

from bascule.broker.main import main

if __name__ == "__main__":
    main()
