"""The kernels that grade: forked from a warm process, each in a sandbox, each with a keeper that enforces the limits.

::

    grading process                 no student code; talks to kernels over sockets in a private folder
      └─ warm process               has imported torch; forks; no student code, no secrets, not reachable from kernels
           └─ keeper (one a kernel) watches time, memory, processes, files; ends everything that the kernel started
                └─ kernel           the student's code, inside the sandbox
"""
