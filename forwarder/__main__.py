"""`python -m forwarder` is `forwarder`."""

from forwarder.cli.main import main

if __name__ == "__main__":
    main()
