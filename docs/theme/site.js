// On a narrow screen the cells of a row stand one below the other (site.css): each says which column it is of.
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const titles = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, column) => column && titles[column] && cell.setAttribute("data-title", titles[column]));
  }
}
