"""Sphinx's settings for both books. `python -m grading.book` copies this file beside what it has written."""

import os

EDITION = os.environ["COURSE_BOOK_EDITION"]
project = "PyTorch foundations" + (", with answers" if EDITION == "solutions" else "")
html_title = project
extensions = ["myst_nb", "sphinx_immaterial", "sphinx_immaterial.mermaid_diagrams"]
language = "en"
smartquotes = False  # an error text is copied as it stands
html_use_index = False  # the book brings indexes of its own
html_show_copyright = False

nb_execution_mode = "off"
nb_render_markdown_format = "gfm"
nb_code_prompt_show = "Guess first, then open what the cell shows"
nb_code_prompt_hide = "Fold"
suppress_warnings = ["myst.header"]  # a notebook's first heading of the third level may stand before its first part

html_theme = "sphinx_immaterial"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_js_files = ["land.js"]
html_copy_source = False
html_last_updated_fmt = None
html_theme_options = {
    "font": False,  # the reader's own: nothing is fetched
    "features": ["navigation.sections", "toc.follow", "navigation.top", "search.highlight"],
    "palette": [
        {
            "media": "(prefers-color-scheme: light)",
            "scheme": "default",
            "primary": "teal",
            "toggle": {"icon": "material/weather-night", "name": "Dark"},
        },
        {
            "media": "(prefers-color-scheme: dark)",
            "scheme": "slate",
            "primary": "teal",
            "toggle": {"icon": "material/weather-sunny", "name": "Light"},
        },
    ],
}
