"""Mutation run: small changes to the code that commits, each run against the tests that cover its line.

code     what is mutated, and how: pure, from a module's source to its mutants
coverage which tests run which line, recorded by a pytest plugin
run      one mutant in a process of its own: killed, timed out or survived
__main__ the command: python -m tests.mutation --help
"""
