"""Solutions of notebook 03, and wrong answers with what the checker says of them."""

FACTS = 9
PICTURES = 3

SPEC = '''
answer = f"""
apiVersion: tarn/v1
kind: Ingestor
metadata: {{name: {lab.ingestor("orders").replace("orders", "readings")}}}
spec:
  source: {{kafka: {{topic: {lab.topic("orders").replace("orders", "readings")}}}}}
  table: {{namespace: {lab.namespace}, name: readings}}
  schema:
    fields:
      - {{name: sensor, type: string, required: true}}
      - {{name: at, type: timestamptz, required: true}}
      - {{name: celsius, type: double}}
      - {{name: ok, type: boolean}}
"""
'''

FRESH = """
def fresh_within(rows):
    return rows["seconds"].{}


answer = fresh_within
"""

SOLUTIONS = {
    "exercise-1": "answer = 0.5\n",
    "exercise-2": FRESH.format("quantile(0.95)"),
    "exercise-3": SPEC,
    "exercise-4": 'answer = {"a": "lake", "b": "log", "c": "lake", "d": "log"}\n',
}

WRONG = {
    "exercise-1": [
        ("answer = 2\n", "a row may wait 2 s"),
        ("answer = 0.1\n", "10 commits a second"),
        ('answer = "soon"\n', "is of type str, asked for is a number of seconds"),
    ],
    "exercise-2": [
        (FRESH.format("mean()"), "it returned the mean"),
        (FRESH.format("median()"), "it returned the median"),
        (FRESH.format("max()"), "it returned the longest wait"),
        (FRESH.format("quantile(0.05)"), "what 95 of 100 rows have exceeded"),
        (FRESH.format("quantile(0.95) * 1000"), "in milliseconds"),
        (FRESH.format("std() + 100"), "95 of 100 orders were readable within"),
        (FRESH.format("sort_values()"), "it returned something of type Series"),
        ("answer = 0.5\n", "0.5 is no function"),
    ],
    "exercise-3": [
        (SPEC.replace("type: timestamptz", "type: string"), "at is string; it has to be timestamptz"),
        (SPEC.replace("type: double", "type: long"), "celsius is long"),
        (SPEC.replace("      - {{name: ok, type: boolean}}\n", ""), "the column ok is missing"),
        (SPEC.replace("type: string, required: true", "type: string"), "sensor is not required"),
        (SPEC.replace("type: boolean", "type: bool"), "your spec"),
        (SPEC.replace("{lab.namespace}", "bronze"), "its table is bronze.readings"),
        ("answer = lab.topic\n", "is no spec"),
    ],
    "exercise-4": [
        ('answer = {"a": "log", "b": "log", "c": "lake", "d": "log"}\n', "a: she reads the table"),
        ('answer = {"a": "lake", "b": "lake", "c": "lake", "d": "log"}\n', "b: many small writes"),
        ('answer = {"a": "lake", "b": "log", "c": "log", "d": "log"}\n', "c: the report starts"),
        ('answer = {"a": "lake", "b": "log", "c": "lake"}\n', "d is missing"),
        ('answer = {"a": "lake", "b": "kafka"}\n', "'kafka' is no acknowledgement"),
    ],
}
