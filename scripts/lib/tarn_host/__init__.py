"""What runs on the host: Python 3.9, standard library only.

Each script in scripts/ is one module here with a `main`. What can be a pure function of its inputs is one;
everything that has to know the lake itself runs in the `cli` container instead.
"""
