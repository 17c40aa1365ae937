"""The sandbox that student kernels run in. ``python -m grading.sandbox`` says what this machine offers."""
