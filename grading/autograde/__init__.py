"""Grade a class: ``python -m grading.autograde``, which is what ``make autograde`` runs.

* :mod:`~grading.autograde.intake`   what a student handed in, whatever state it is in, as plain data
* :mod:`~grading.autograde.rescue`   a notebook out of the bytes of a file, broken or not
* :mod:`~grading.autograde.task`     grades one submission: data in, data out; runs in any process on any machine
* :mod:`~grading.autograde.engines`  where the tasks run: processes of this machine, or a Dask cluster
* :mod:`~grading.autograde.store`    results as files, one a submission, written whole or not at all
* :mod:`~grading.autograde.marks`    the one writer to nbgrader's gradebook
* :mod:`~grading.autograde.report`   the table and the flags that an instructor reads
* :mod:`~grading.autograde.suspicion` what a person should look at
"""
