// Filters for the table of the catalogue, and the terms of the address (catalogue.html?kind=schedule).
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.catalogue");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const text = (row, column) => row.cells[column].textContent.trim();
  const KIND = 1, NEEDS = 4, ROWS = 5;
  const choice = (label, column, shown) => {
    const options = [...new Set(rows.map((row) => text(row, column)))].filter(Boolean).sort();
    const select = document.createElement("select");
    select.setAttribute("aria-label", label);
    select.add(new Option(label, ""));
    options.forEach((option) => select.add(new Option(shown(option), option)));
    return { control: select, fits: (row) => !select.value || text(row, column) === select.value };
  };
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "Filter: a word, a name, a year";
  search.setAttribute("aria-label", search.placeholder);
  const filters = [
    {
      control: search,
      fits: (row) => search.value.toLowerCase().split(/\s+/).every((word) => row.textContent.toLowerCase().includes(word)),
    },
    choice("every kind", KIND, (kind) => kind),
    choice("whatever it needs", NEEDS, (needs) => `needs ${needs}`),
    choice("rows or not", ROWS, (works) => (works === "yes" ? "works on rows" : "whole arrays only")),
  ];
  const count = document.createElement("output");
  const bar = document.createElement("div");
  bar.className = "catalogue-filters";
  const update = () => {
    rows.forEach((row) => (row.hidden = !filters.every((filter) => filter.fits(row))));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  filters.forEach(({ control }) => {
    control.addEventListener("input", update);
    bar.append(control);
  });
  bar.append(count);
  (table.closest(".table-wrapper") || table).before(bar);
  const asked = new URLSearchParams(location.search);
  filters[1].control.value = asked.get("kind") || "";
  search.value = asked.get("word") || "";
  update();
});
