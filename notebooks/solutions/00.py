"""What notebook 00 shows; it has no exercises."""

FACTS = 13
PICTURES = 4
SOLUTIONS: dict[str, str] = {}
WRONG: dict[str, list[tuple[str, str]]] = {}
