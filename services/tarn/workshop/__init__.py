"""What the workshop's notebooks need beside the lake's own interfaces: waiting, checking, drawing.

    from tarn import workshop

    lab = workshop.open("03")
    orders = lab.catalog.load_table(lab.name("orders"))
    lab.fact("every order is there once", orders.scan().count() == 100)
    lab.done()

`Lab` has the whole interface. What a notebook says to the lake stands in the notebook; what it says to its
reader is here.
"""

from __future__ import annotations

from tarn.workshop.lab import Lab
from tarn.workshop.lab import open_lab as open
from tarn.workshop.verdict import Verdict, right, wrong

__all__ = ("Lab", "Verdict", "open", "right", "wrong")
