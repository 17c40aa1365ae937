"""Which students' answers to an exercise are alike beyond what the task itself brings.

``python -m grading.similarity`` (see ``command.py``) writes a page and a table for a person to read. It proves nothing.
"""
