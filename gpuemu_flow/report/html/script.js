/* What a reader can do with the page: find ops, copy commands, look into the matrix, choose a theme. */
(function () {
  "use strict";
  var byId = function (id) { return document.getElementById(id); };
  var make = function (name, text, attributes) {
    var node = document.createElement(name);
    if (text !== undefined && text !== null) node.textContent = text;
    Object.keys(attributes || {}).forEach(function (key) { node.setAttribute(key, attributes[key]); });
    return node;
  };
  document.querySelectorAll(".tools").forEach(function (node) { node.hidden = false; });

  var theme = byId("theme"), root = document.documentElement;
  var dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  var showTheme = function () {
    theme.textContent = dark ? "Light" : "Dark";
    theme.setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
  };
  theme.hidden = false;
  showTheme();
  theme.addEventListener("click", function () {
    dark = !dark;
    root.dataset.theme = dark ? "dark" : "light";
    showTheme();
  });

  var find = byId("find"), onlyBad = byId("only-bad");
  var filter = function () {
    var word = find.value.trim().toLowerCase(), shown = 0;
    document.querySelectorAll("#summary tbody tr").forEach(function (row) {
      var fits = row.dataset.op.toLowerCase().indexOf(word) >= 0;
      if (onlyBad.checked && row.dataset.verdict === "passed") fits = false;
      row.hidden = !fits;
      if (fits) shown += 1;
    });
    byId("found").textContent = word || onlyBad.checked ? shown + " shown" : "";
  };
  if (find) {
    find.addEventListener("input", filter);
    onlyBad.addEventListener("change", filter);
  }

  document.querySelectorAll(".copy").forEach(function (button) {
    button.addEventListener("click", function () {
      var code = button.parentNode.querySelector("code");
      var done = function () {
        button.textContent = "Copied";
        byId("said").textContent = "Copied " + code.textContent;
        window.setTimeout(function () { button.textContent = "Copy"; }, 1500);
      };
      var choose = function () {
        var range = document.createRange();
        range.selectNodeContents(code);
        var chosen = window.getSelection();
        chosen.removeAllRanges();
        chosen.addRange(range);
        if (document.execCommand("copy")) done();
      };
      if (navigator.clipboard && window.isSecureContext) {
        navigator.clipboard.writeText(code.textContent).then(done, choose);
      } else {
        choose();
      }
    });
  });

  var open = function () {
    var target = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  window.addEventListener("hashchange", open);
  document.addEventListener("click", function (event) {
    var link = event.target.closest && event.target.closest('a[href^="#failure-"]');
    if (link) byId(link.getAttribute("href").slice(1)).open = true;
  });
  open();

  var data = byId("data");
  if (!data) return;
  data = JSON.parse(data.textContent);
  var grid = byId("grid"), panel = byId("cell"), badOnly = byId("matrix-bad");
  var PLACE = { strategies: 3, classes: 2 };
  var OTHER = { strategies: "classes", classes: "strategies" };
  var columns = function () {
    return document.querySelector('input[name="columns"]:checked').value;
  };
  var add = function (into, cell) {
    for (var n = 0; n < 4; n += 1) into[n] += cell[4 + n];
    return into;
  };
  var total = function (counts) { return counts[0] + counts[1] + counts[2] + counts[3]; };
  var look = function (counts) {
    if (counts[1]) return "failed";
    if (counts[2]) return "error";
    return counts[0] === total(counts) ? "passed" : "other";
  };
  var said = function (counts) {
    var words = [" passed", " failed", " in error", " without a verdict"];
    return counts.map(function (n, i) { return n ? n + words[i] : ""; })
      .filter(Boolean).join(", ");
  };
  var sums = function (cells, place) {
    var found = {};
    cells.forEach(function (cell) {
      var key = cell[place];
      found[key] = add(found[key] || [0, 0, 0, 0], cell);
    });
    return found;
  };
  var rows = {}, wrong = {};
  data.cells.forEach(function (cell) {
    var key = cell[0] + "/" + cell[1];
    (rows[key] = rows[key] || []).push(cell);
    if (cell[5] || cell[6]) wrong[key] = true;
  });
  var order = Object.keys(rows).sort(function (a, b) {
    var x = a.split("/").map(Number), y = b.split("/").map(Number);
    if (!wrong[a] !== !wrong[b]) return wrong[a] ? -1 : 1;
    return x[0] - y[0] || x[1] - y[1];
  });
  var showCell = function (button, key, kind, at) {
    grid.querySelectorAll('[aria-pressed="true"]').forEach(function (one) {
      one.setAttribute("aria-pressed", "false");
    });
    button.setAttribute("aria-pressed", "true");
    var ids = key.split("/"), other = OTHER[kind];
    var cells = rows[key].filter(function (cell) { return cell[PLACE[kind]] === at; });
    var by = sums(cells, PLACE[other]);
    panel.textContent = "";
    panel.appendChild(make("p", data.ops[ids[0]] + " " + data.dtypes[ids[1]] + ", " +
      (kind === "strategies" ? "strategy " : "shape class ") + data[kind][at] + ":"));
    var table = make("table"), body = make("tbody");
    Object.keys(by).forEach(function (number) {
      var row = make("tr");
      row.appendChild(make("th", data[other][number], { scope: "row" }));
      row.appendChild(make("td", said(by[number])));
      body.appendChild(row);
    });
    table.appendChild(body);
    panel.appendChild(table);
    panel.hidden = false;
  };
  var draw = function () {
    var kind = columns(), head = make("thead"), top = make("tr"), body = make("tbody");
    top.appendChild(make("th", "Op", { scope: "col" }));
    data[kind].forEach(function (word) { top.appendChild(make("th", word, { scope: "col" })); });
    head.appendChild(top);
    order.forEach(function (key) {
      var ids = key.split("/"), by = sums(rows[key], PLACE[kind]);
      if (badOnly.checked && !wrong[key]) return;
      var row = make("tr"), name = make("th", data.ops[ids[0]] + " ", { scope: "row" });
      name.appendChild(make("span", data.dtypes[ids[1]]));
      row.appendChild(name);
      data[kind].forEach(function (word, at) {
        var cell = make("td"), counts = by[at];
        if (counts) {
          // What is seen must be part of the name, for people who speak to their machine.
          var text = (look(counts) === "passed" ? "" : "✗ ") + counts[0] + "/" + total(counts);
          var button = make("button", text, { type: "button", "class": look(counts),
            "aria-pressed": "false", tabindex: "-1", "aria-label": data.ops[ids[0]] + " " +
            data.dtypes[ids[1]] + " " + word + ": " + text + ", " + said(counts) });
          button.addEventListener("click", function () { showCell(button, key, kind, at); });
          cell.appendChild(button);
        }
        row.appendChild(cell);
      });
      body.appendChild(row);
    });
    grid.textContent = "";
    grid.appendChild(make("caption", "Cases passed of all, " +
      (kind === "strategies" ? "by strategy" : "by shape class"), { "class": "hide" }));
    grid.appendChild(head);
    grid.appendChild(body);
    panel.hidden = true;
    var first = grid.querySelector("button.failed, button.error") || grid.querySelector("button");
    if (first) first.tabIndex = 0;
  };
  // One stop for the Tab key, as there may be thousands of cells; arrows lead from each to the next.
  var STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  var enter = function (button) {
    grid.querySelectorAll('button[tabindex="0"]').forEach(function (one) { one.tabIndex = -1; });
    button.tabIndex = 0;
  };
  grid.addEventListener("focusin", function (event) {
    if (event.target.tagName === "BUTTON") enter(event.target);
  });
  grid.addEventListener("keydown", function (event) {
    var step = STEPS[event.key], cell = event.target.closest && event.target.closest("td");
    if (!cell || !(step || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    var table = grid.tBodies[0].rows, width = cell.parentNode.cells.length;
    var y = Array.prototype.indexOf.call(table, cell.parentNode), x = cell.cellIndex;
    if (!step) {
      x = event.key === "Home" ? 0 : width;
      step = event.key === "Home" ? [0, 1] : [0, -1];
    }
    for (;;) {
      y += step[0];
      x += step[1];
      if (y < 0 || y >= table.length || x < 1 || x >= width) return;
      var next = table[y].cells[x].querySelector("button");
      if (next) { next.focus(); return; }
    }
  });
  document.querySelectorAll('input[name="columns"]').forEach(function (input) {
    input.addEventListener("change", draw);
  });
  badOnly.addEventListener("change", draw);
  draw();
})();
