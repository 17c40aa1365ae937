"""The contact sheet: a row of images per class, to see at a glance what the data is."""

import io

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from course_utils.data.images import SIDE
from course_utils.data.reading import CifarMiniArrays

ENLARGE = 3
GAP = 2
MARGIN = 8
FONT_SIZE = 18


def contact_sheet(data: CifarMiniArrays, per_class: int = 20) -> bytes:
    """A PNG with the first images of every class, three times their size, class names at the left, source above."""
    font = ImageFont.load_default(FONT_SIZE)
    cell = SIDE * ENLARGE + GAP
    rows = [np.flatnonzero(data.labels == label)[:per_class] for label in range(len(data.classes))]
    columns = max(len(row) for row in rows)
    names_width = int(max(font.getlength(name) for name in data.classes)) + 2 * MARGIN
    title = f"CIFAR-mini, {data.split}: {data.describe()}"
    title_height = FONT_SIZE + 2 * MARGIN
    width = max(names_width + columns * cell, int(font.getlength(title)) + 2 * MARGIN)
    sheet = Image.new("RGB", (width, title_height + len(rows) * cell), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), title, fill="black", font=font)
    for label, row in enumerate(rows):
        top = title_height + label * cell
        draw.text((MARGIN, top + cell // 2), data.classes[label], fill="black", font=font, anchor="lm")
        for column, position in enumerate(row):
            image = Image.fromarray(np.asarray(data.images[position]))
            big = image.resize((SIDE * ENLARGE, SIDE * ENLARGE), Image.Resampling.NEAREST)
            sheet.paste(big, (names_width + column * cell, top))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()
