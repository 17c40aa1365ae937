"""The course as two books of static HTML: ``make book``.

``book/solutions/``  the executed reference edition, with answers: for instructors, and for reading after the work
``book/learners/``   the same without answers: stubs in their place, no verdicts, every demonstration with its output

No notebook is run: the outputs are those that ``make build`` has kept. Nothing is fetched, neither while building nor
while reading; a book opens from the disk, with its search and its graphs.
"""
