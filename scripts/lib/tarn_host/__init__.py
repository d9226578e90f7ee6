"""Host-side code: Python 3.9, standard library only.

Each script in scripts/ is one module here with a `main`. Whatever can be a pure function of its inputs is
one; everything that needs to know the lake itself runs in the `cli` container instead.
"""
