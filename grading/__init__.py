"""The instructors' side: sources to notebooks, references, the judge, nbgrader's executor, the answer bank.

Never ships to students, and ``course_utils`` never imports it.
"""
