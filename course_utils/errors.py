"""What the course's commands say when something is wrong that the user can put right."""


class CourseError(Exception):
    """A clear message for the person at the keyboard: one line, and what to do. Commands print it without a traceback."""
