// Measurements on the outputs of the notebook that is open, as functions of `looks`.
window.looks = {
  // Outputs of cells, and the Markdown between them: what the course itself has put on the page.
  roots() {
    return [...document.querySelectorAll('.jp-Notebook .jp-OutputArea-output, .jp-Notebook .jp-MarkdownOutput')];
  },

  // Where an element stands, for people: the number of its cell and its first words.
  place(element) {
    const cell = element.closest('.jp-Cell');
    const number = [...document.querySelectorAll('.jp-Notebook .jp-Cell')].indexOf(cell);
    return `cell ${number}: <${element.tagName.toLowerCase()} class="${element.className}"> ` +
      `${(element.textContent || element.alt || '').trim().slice(0, 60)}`;
  },

  // [red, green, blue, alpha] of a CSS colour; a canvas reads every notation, color-mix() and names too.
  colour(text) {
    if (!(text in this.known)) {
      const context = this.canvas.getContext('2d', {willReadFrequently: true});
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = text;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      this.known[text] = [r, g, b, a / 255];
    }
    return this.known[text];
  },
  known: {},
  canvas: new OffscreenCanvas(1, 1),

  over(upper, lower) {
    const alpha = upper[3];
    return [0, 1, 2].map(i => upper[i] * alpha + lower[i] * (1 - alpha)).concat(1);
  },

  background(element) {
    const layers = [];
    for (let node = element; node; node = node.parentElement) {
      const layer = this.colour(getComputedStyle(node).backgroundColor);
      layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => this.over(layer, below), [255, 255, 255, 1]);
  },

  // WCAG 2.2, relative luminance and contrast ratio.
  luminance(colour) {
    const [r, g, b] = colour.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  },
  contrast(one, other) {
    const [low, high] = [this.luminance(one), this.luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  },

  opacity(element) {
    let product = 1;
    for (let node = element; node; node = node.parentElement) product *= Number(getComputedStyle(node).opacity);
    return product;
  },

  // Texts below WCAG AA: 4.5 to 1, or 3 to 1 for large type. Also how many texts were looked at.
  contrasts() {
    let count = 0;
    const low = [];
    for (const root of this.roots()) {
      const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || element.closest('option, script, style, [hidden]')) continue;
        if (element.closest('.jp-RenderedMarkdown pre code span')) continue;  // JupyterLab's own colours of code in texts
        const style = getComputedStyle(element);
        if (style.display === 'none' || style.visibility === 'hidden') continue;
        const disabled = element.closest(':disabled');  // WCAG asks nothing of controls that cannot be used
        if (disabled) continue;
        const below = this.background(element);
        const ink = this.colour(style.color);
        const seen = this.over([ink[0], ink[1], ink[2], ink[3] * this.opacity(element)], below);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        const ratio = this.contrast(seen, below);
        count += 1;
        if (ratio < (large ? 3 : 4.5)) low.push(`${ratio.toFixed(2)} to 1, ${this.place(element)}`);
      }
    }
    return {count, low};
  },

  // Outputs that are wider than their place. Pictures, cards and controls must fit; a table or a line of text may be
  // scrolled in its own box.
  overflows() {
    const wide = [];
    const panel = document.querySelector('.jp-WindowedPanel-outer') || document.querySelector('.jp-Notebook');
    if (panel.scrollWidth > panel.clientWidth + 1) wide.push(`the whole notebook is ${panel.scrollWidth} wide in ${panel.clientWidth}`);
    for (const root of this.roots()) {
      const box = root.getBoundingClientRect();
      for (const element of root.querySelectorAll('img, svg, .course-card, input, select, button, .widget-html-content, .slider-container')) {
        const own = element.getBoundingClientRect();
        if (own.width && own.right > box.right + 1) wide.push(`${Math.round(own.right - box.right)} px too wide, ${this.place(element)}`);
      }
      for (const element of root.querySelectorAll('table, pre')) {
        const own = element.getBoundingClientRect();
        let scrolled = own.right <= box.right + 1;
        for (let node = element; node && !scrolled; node = node.parentElement) {
          scrolled = node.scrollWidth > node.clientWidth && /auto|scroll/.test(getComputedStyle(node).overflowX);
        }
        if (!scrolled) wide.push(`cut off, ${this.place(element)}`);
      }
    }
    return wide;
  },

  // Pictures of outputs and of the text between: what is said of each, and whether the browser could draw it.
  pictures() {
    return this.roots().flatMap(root => [...root.querySelectorAll('img')]).map(image => ({
      alt: (image.getAttribute('alt') || '').trim(), drawn: image.complete && image.naturalWidth > 0,
      place: this.place(image),
    }));
  },
};
