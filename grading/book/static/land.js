// The search opens a page, not a place on it. Here the page then goes to the part that fits the words best: a word in a
// heading counts more than one below it. `h` holds the words; the theme puts them into the address of each hit.
addEventListener("load", () => {
  const words = (new URLSearchParams(location.search).get("h") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const main = document.querySelector("[role=main]");
  if (!words.length || location.hash || !main) return;
  const headings = [...main.querySelectorAll("h1[id], h2[id], h3[id], h4[id]")];
  let best = { points: 0 };
  headings.forEach((heading, i) => {
    const range = document.createRange();
    range.setStartAfter(heading);
    if (i + 1 < headings.length) range.setEndBefore(headings[i + 1]);
    else range.setEndAfter(main.lastChild);
    const title = heading.textContent.toLowerCase();
    const below = range.toString().toLowerCase();
    const points = words.reduce((sum, word) => sum + (title.includes(word) ? 3 : below.includes(word) ? 1 : 0), 0);
    if (points > best.points) best = { points, heading };
  });
  best.heading?.scrollIntoView();
});
