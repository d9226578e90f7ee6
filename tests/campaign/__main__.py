"""`python -m tests.campaign`. Processes that simulate load this file too, but not the commands."""

if __name__ == "__main__":
    import sys

    from tests.campaign.commands import main, with_fixed_hashes

    with_fixed_hashes()
    sys.exit(main())
