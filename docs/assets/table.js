/* The home page's table: filters, sorting, comparing, permalinks and downloads.
   It draws the rows that the page already holds as HTML from the same data, so both look the same.
   Nothing is sent anywhere; where stacks are many, the rest is read from api/v1/table.json. */
(function () {
  "use strict";

  var STEP = 100;
  // Rows that are drawn at once: more than a screen holds. Others follow as soon as nothing waits.
  var SCREEN = 25;

  /** An element with attributes and children; text is only ever set as text. */
  function el(tag, attributes, children) {
    var node = document.createElement(tag);
    Object.keys(attributes || {}).forEach(function (name) {
      if (attributes[name] !== null && attributes[name] !== undefined) {
        node.setAttribute(name, attributes[name]);
      }
    });
    (children || []).forEach(function (child) {
      node.append(child);
    });
    return node;
  }

  function className(id) {
    return id.replace(/ /g, "-");
  }

  function badge(kind, word) {
    return el("span", { class: "mx-badge mx-" + kind + "-" + className(word.id) }, [
      el("span", { class: "mx-sign", "aria-hidden": "true" }, [word.sign]),
      " " + word.label,
    ]);
  }

  /** The data of the page, or of the file beside it. */
  function load(done, failed) {
    var inline = document.getElementById("mx-data");
    if (inline) {
      done(index(JSON.parse(inline.textContent)));
      return;
    }
    fetch("api/v1/table.json")
      .then(function (answer) {
        if (!answer.ok) throw new Error("status " + answer.status);
        return answer.json();
      })
      .then(function (data) {
        done(index(data));
      })
      .catch(failed);
  }

  function index(data) {
    data.word = {};
    data.verdicts.forEach(function (word, at) {
      data.word["v:" + word.id] = word;
      word.rank = at;
    });
    data.letter = {};
    data.statuses.forEach(function (word, at) {
      data.letter[word.letter] = word;
      word.rank = at;
    });
    return data;
  }

  /** Lets a long text break after a colon or a slash, as the page's own text does. */
  function breakable(text) {
    var parts = [];
    text.split(/([:/])/).forEach(function (piece) {
      if (piece === ":" || piece === "/") parts.push(piece, el("wbr"));
      else if (piece) parts.push(piece);
    });
    return parts;
  }

  function cellWords(data, row, at) {
    var remark = row.remarks[at];
    var words = data.letter[row.cells[at]].label;
    return remark === undefined ? words : words + ", " + data.remarks[remark];
  }

  function chip(data, row, at) {
    var probe = data.probes[at];
    var status = data.letter[row.cells[at]];
    var words = probe.id + ": " + cellWords(data, row, at);
    return el("li", {}, [
      el(
        "a",
        {
          class: "mx-chip mx-s-" + className(status.id),
          href: "stacks/" + row.id + ".html#probe-" + probe.id,
          title: words,
          "aria-label": probe.code + " " + words,
        },
        [el("span", { "aria-hidden": "true" }, [status.sign]), probe.code],
      ),
    ]);
  }

  function version(data, row, at) {
    return data.components[at].versions[row.versions[at]];
  }

  function short(data, row, at) {
    return data.components[at].shorts[row.versions[at]];
  }

  /** Components that are the same in all rows; "system" differs from nothing. */
  function equalColumns(data, rows) {
    var equal = {};
    data.components.forEach(function (part, at) {
      var seen = {};
      rows.forEach(function (row) {
        seen[row.versions[at]] = true;
      });
      var places = Object.keys(seen);
      var told = places.filter(function (place) {
        return part.versions[place] !== "system";
      });
      if (!told.length) told = places;
      if (told.length === 1) equal[part.name] = part.shorts[told[0]];
    });
    return equal;
  }

  function rowElement(data, row, equal, patched, chosen) {
    var cells = [
      el("th", { scope: "row", role: "rowheader" }, [
        el("a", { href: "stacks/" + row.id + ".html" }, [row.title]),
        el("code", { class: "mx-id" }, [row.id]),
        el("label", { class: "mx-pick" }, [pick(row, chosen), " compare"]),
      ]),
      el("td", { role: "cell", "data-label": "Verdict" }, [
        badge("v", data.word["v:" + row.verdict]),
        row.stale
          ? el("span", { class: "mx-badge mx-stale" }, [
              el("span", { class: "mx-sign", "aria-hidden": "true" }, ["⌛"]),
              " stale",
            ])
          : "",
        el("small", { class: "mx-why" }, breakable(row.why)),
      ]),
    ];
    data.components.forEach(function (part, at) {
      if (part.name in equal) return;
      var has = version(data, row, at);
      cells.push(
        el("td", { role: "cell", "data-label": part.short, class: "mx-version" }, [
          has === "none"
            ? el("span", { class: "mx-none" }, ["none"])
            : el("span", { title: has }, [short(data, row, at)]),
        ]),
      );
    });
    if (patched) {
      var links = [];
      row.patches.forEach(function (place, at) {
        var patch = data.patches[place];
        if (at) links.push(" ");
        links.push(el("a", { href: "patches/" + patch.id + ".html", title: patch.id }, [patch.short]));
      });
      if (!links.length) links = [el("span", { class: "mx-none" }, ["none"])];
      cells.push(el("td", { role: "cell", "data-label": "Patches", class: "mx-version" }, links));
    }
    var strips = [true, false].map(function (required) {
      var chips = [];
      data.probes.forEach(function (probe, at) {
        if (probe.required === required) chips.push(chip(data, row, at));
      });
      return el("ul", { class: "mx-strip", "aria-label": required ? "Required" : "Not required" }, chips);
    });
    cells.push(el("td", { role: "cell", "data-label": "Probes", class: "mx-strips" }, strips));
    return el("tr", { role: "row", "data-stack": row.id }, cells);
  }

  function pick(row, chosen) {
    var box = el("input", { type: "checkbox", value: row.id, "aria-label": "Compare " + row.title + " " + row.id });
    box.checked = chosen.indexOf(row.id) >= 0;
    return box;
  }

  /* What the address says, and back. Only what differs from the plain view is written. */

  function emptyView() {
    return { q: "", verdict: "", patch: "", probe: "", status: "fail", components: {}, sort: "", compare: [] };
  }

  function readView(search) {
    var view = emptyView();
    new URLSearchParams(search).forEach(function (value, name) {
      if (name === "probe") {
        var cut = value.lastIndexOf(":");
        view.probe = cut < 0 ? value : value.slice(0, cut);
        view.status = cut < 0 ? "fail" : value.slice(cut + 1);
      } else if (name === "compare") {
        view.compare = value.split(",").filter(Boolean).slice(0, 2);
      } else if (name.slice(0, 2) === "c.") {
        view.components[name.slice(2)] = value;
      } else if (name === "q" || name === "verdict" || name === "patch" || name === "sort") {
        view[name] = value;
      }
    });
    return view;
  }

  function writeView(view) {
    var query = new URLSearchParams();
    if (view.q) query.set("q", view.q);
    if (view.verdict) query.set("verdict", view.verdict);
    if (view.probe) query.set("probe", view.probe + ":" + view.status);
    if (view.patch) query.set("patch", view.patch);
    Object.keys(view.components)
      .sort()
      .forEach(function (name) {
        if (view.components[name]) query.set("c." + name, view.components[name]);
      });
    if (view.sort) query.set("sort", view.sort);
    if (view.compare.length) query.set("compare", view.compare.join(","));
    var text = query.toString();
    return text ? "?" + text : "";
  }

  /* Which rows a view shows, in which order. */

  function haystack(data, row) {
    if (row.text === undefined) {
      var words = [row.title, row.id, row.verdict, row.why];
      data.components.forEach(function (_, at) {
        words.push(version(data, row, at));
      });
      row.patches.forEach(function (place) {
        words.push(data.patches[place].id);
      });
      Object.keys(row.remarks).forEach(function (at) {
        words.push(data.probes[at].id, data.remarks[row.remarks[at]]);
      });
      row.text = words.join("\n").toLowerCase();
    }
    return row.text;
  }

  function select(data, view) {
    var wanted = view.q.toLowerCase().split(/\s+/).filter(Boolean);
    var probe = data.probes.findIndex(function (one) {
      return one.id === view.probe;
    });
    var status = data.statuses.filter(function (word) {
      // A run that could not be made is, for a reader, no run.
      return word.id === view.status || (view.status === "not run" && word.id === "miss");
    });
    var letters = status
      .map(function (word) {
        return word.letter;
      })
      .join("");
    var patch = data.patches.findIndex(function (one) {
      return one.id === view.patch;
    });
    var versions = [];
    data.components.forEach(function (part, at) {
      var asked = view.components[part.name];
      if (asked) versions.push([at, part.versions.indexOf(asked)]);
    });
    var found = data.stacks.filter(function (row) {
      if (view.verdict && row.verdict !== view.verdict) return false;
      if (view.probe && (probe < 0 || letters.indexOf(row.cells[probe]) < 0)) return false;
      if (view.patch === "none" ? row.patches.length : view.patch && row.patches.indexOf(patch) < 0) return false;
      for (var i = 0; i < versions.length; i++) {
        if (row.versions[versions[i][0]] !== versions[i][1]) return false;
      }
      return wanted.every(function (word) {
        return haystack(data, row).indexOf(word) >= 0;
      });
    });
    return order(data, found, view.sort);
  }

  function failures(data, row) {
    var required = 0;
    var other = 0;
    for (var at = 0; at < row.cells.length; at++) {
      if (row.cells[at] === "f" || row.cells[at] === "k") {
        if (data.probes[at].required) required++;
        else other++;
      }
    }
    return required * 1000 + other;
  }

  function sortKey(data, row, key) {
    if (key === "title") return row.title;
    if (key === "verdict") return data.word["v:" + row.verdict].rank;
    if (key === "patches") return row.patches.length;
    if (key === "probes") return failures(data, row);
    var at = data.components.findIndex(function (part) {
      return "c." + part.name === key;
    });
    return at < 0 ? 0 : row.versions[at];
  }

  function order(data, rows, sort) {
    if (!sort) return rows;
    var down = sort[0] === "-";
    var key = down ? sort.slice(1) : sort;
    var keyed = rows.map(function (row, at) {
      return [sortKey(data, row, key), at, row];
    });
    keyed.sort(function (a, b) {
      var first = a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0;
      return (down ? -first : first) || a[1] - b[1];
    });
    return keyed.map(function (one) {
      return one[2];
    });
  }

  /* Two stacks side by side: differences only. */

  function comparison(data, a, b, close) {
    var rows = [];
    data.components.forEach(function (part, at) {
      if (version(data, a, at) !== version(data, b, at)) {
        rows.push([part.title, [short(data, a, at)], [short(data, b, at)]]);
      }
    });
    var named = function (row) {
      return row.patches
        .map(function (place) {
          return data.patches[place].id;
        })
        .join(", ");
    };
    if (named(a) !== named(b)) rows.push(["Patches", [named(a) || "none"], [named(b) || "none"]]);
    var components = rows.length;
    data.probes.forEach(function (probe, at) {
      var one = cellWords(data, a, at);
      var other = cellWords(data, b, at);
      if (one === other && a.cells[at] === b.cells[at]) return;
      var shown = function (row) {
        var remark = row.remarks[at];
        var found = [badge("s", data.letter[row.cells[at]])];
        if (remark !== undefined) found.push(el("small", { class: "mx-why" }, breakable(data.remarks[remark])));
        return found;
      };
      rows.push([probe.id, shown(a), shown(b)]);
    });
    var head = el("tr", { role: "row" }, [
      el("th", { scope: "col", role: "columnheader" }, ["Differs in"]),
    ]);
    [a, b].forEach(function (row) {
      head.append(
        el("th", { scope: "col", role: "columnheader" }, [
          el("a", { href: "stacks/" + row.id + ".html" }, [row.title]),
          " ",
          badge("v", data.word["v:" + row.verdict]),
        ]),
      );
    });
    var body = rows.map(function (cells) {
      return el("tr", { role: "row" }, [
        el("th", { scope: "row", role: "rowheader" }, [cells[0]]),
        el("td", { role: "cell", "data-label": a.title + " " + a.id }, cells[1]),
        el("td", { role: "cell", "data-label": b.title + " " + b.id }, cells[2]),
      ]);
    });
    var button = el("button", { type: "button", class: "mx-button" }, ["Close the comparison"]);
    button.addEventListener("click", close);
    return [
      el("h2", { id: "comparison" }, ["Comparison"]),
      el("p", {}, [
        components + " component" + (components === 1 ? "" : "s") + " and " + (rows.length - components) +
          " probe" + (rows.length - components === 1 ? "" : "s") + " differ; everything else is equal.",
      ]),
      el("table", { class: "mx-table mx-stackable", role: "table" }, [
        el("caption", {}, ["Differences of two stacks"]),
        el("thead", { role: "rowgroup" }, [head]),
        el("tbody", { role: "rowgroup" }, body),
      ]),
      el("p", { class: "mx-actions" }, [button]),
    ];
  }

  /* What a view holds, for programs. */

  function plain(data, row) {
    var components = {};
    data.components.forEach(function (part, at) {
      components[part.name] = version(data, row, at);
    });
    var probes = {};
    data.probes.forEach(function (probe, at) {
      var remark = row.remarks[at];
      probes[probe.id] = { status: data.letter[row.cells[at]].id, remark: remark === undefined ? null : data.remarks[remark] };
    });
    return {
      id: row.id,
      title: row.title,
      verdict: row.verdict,
      why: row.why,
      day: row.day,
      components: components,
      patches: row.patches.map(function (place) {
        return data.patches[place].id;
      }),
      probes: probes,
    };
  }

  function viewJson(data, rows) {
    var view = { name: data.name, day: data.day, address: location.href, stacks: rows.map(plain.bind(null, data)) };
    return JSON.stringify(view, null, 1) + "\n";
  }

  function viewCsv(data, rows) {
    var heads = ["id", "title", "verdict", "why", "day"]
      .concat(data.components.map(function (part) { return part.name; }), ["patches"])
      .concat(data.probes.map(function (probe) { return probe.id; }));
    var lines = rows.map(function (row) {
      var one = plain(data, row);
      return [one.id, one.title, one.verdict, one.why, one.day || ""]
        .concat(Object.values(one.components), [one.patches.join(" ")])
        .concat(Object.values(one.probes).map(function (probe) { return probe.status; }));
    });
    return [heads].concat(lines).map(function (cells) {
      return cells.map(field).join(",");
    }).join("\r\n") + "\r\n";
  }

  /** A field of a CSV file. A spreadsheet would take a leading sign such as = for a formula. */
  function field(value) {
    var text = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
    return /[",\r\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  }

  function save(name, type, text) {
    var link = el("a", { href: URL.createObjectURL(new Blob([text], { type: type })), download: name });
    link.click();
    setTimeout(function () {
      URL.revokeObjectURL(link.href);
    }, 1000);
  }

  /* The page. */

  function start(data) {
    var form = document.getElementById("mx-filters");
    var table = document.getElementById("mx-support");
    var count = document.getElementById("mx-count");
    var more = document.getElementById("mx-more");
    var panel = document.getElementById("mx-compare");
    var equalLine = document.getElementById("mx-equal");
    var view = readView(location.search);
    var rows = [];
    var shown = 0;
    var goal = 0; // so many are shown soon
    var byId = {};
    data.stacks.forEach(function (row) {
      byId[row.id] = row;
    });

    function fill() {
      Array.prototype.forEach.call(form.elements, function (field) {
        if (!field.name) return;
        var asked = field.name.slice(0, 2) === "c." ? view.components[field.name.slice(2)] : view[field.name];
        field.value = asked || (field.name === "status" ? "fail" : "");
        // A version that is no longer in the table shows no row, and the field says why.
        if (asked && field.value !== asked && field.tagName === "SELECT") {
          field.append(el("option", { value: asked }, [asked + " (in no stack)"]));
          field.value = asked;
        }
      });
      form.elements.status.disabled = !view.probe;
      var asked = Object.keys(view.components).some(function (name) {
        return view.components[name];
      });
      if (asked || window.innerWidth >= 960) document.getElementById("mx-versions").open = true;
    }

    function take() {
      Array.prototype.forEach.call(form.elements, function (field) {
        if (!field.name) return;
        if (field.name.slice(0, 2) === "c.") view.components[field.name.slice(2)] = field.value;
        else view[field.name] = field.value;
      });
      form.elements.status.disabled = !view.probe;
    }

    function remember(replace) {
      var address = location.pathname + writeView(view) + location.hash;
      if (location.pathname + location.search + location.hash === address) return;
      try {
        history[replace ? "replaceState" : "pushState"](null, "", address);
      } catch (error) {
        // A page opened from a disk may not change its address; the view still works.
      }
    }

    function head(equal, patched) {
      var keys = [["title", "Stack"], ["verdict", "Verdict"]];
      data.components.forEach(function (part) {
        if (!(part.name in equal)) keys.push(["c." + part.name, part.short, part.title]);
      });
      if (patched) keys.push(["patches", "Patches"]);
      keys.push(["probes", "Probes"]);
      var cells = keys.map(function (key) {
        var up = view.sort === key[0];
        var down = view.sort === "-" + key[0];
        var button = el("button", { type: "button", class: "mx-sort", "data-key": key[0], title: key[2] || null }, [
          key[1],
          el("span", { "aria-hidden": "true", class: "mx-arrow" }, [up ? "▲" : down ? "▼" : "↕"]),
        ]);
        return el("th", {
          scope: "col",
          role: "columnheader",
          "aria-sort": up ? "ascending" : down ? "descending" : null,
        }, [button]);
      });
      table.tHead.replaceChildren(el("tr", { role: "row" }, cells));
    }

    var drawn = null;
    var following = null;

    /** The next rows: a screen of them now, the rest up to a step when the browser is free. */
    function grow() {
      goal = Math.min(goal + STEP, rows.length);
      more.hidden = goal >= rows.length;
      more.textContent = "Show " + Math.min(STEP, rows.length - goal) + " more";
      count.textContent =
        rows.length + " of " + data.stacks.length + " stack" + (data.stacks.length === 1 ? "" : "s") +
        (goal < rows.length ? ", the first " + goal + " shown" : "");
      add();
    }

    function add() {
      var part = rows.slice(shown, Math.min(shown + SCREEN, goal)).map(function (row) {
        return rowElement(data, row, drawn.equal, drawn.patched, view.compare);
      });
      table.tBodies[0].append.apply(table.tBodies[0], part);
      shown += part.length;
      clearTimeout(following);
      if (shown < goal) following = setTimeout(add, 0);
    }

    function draw() {
      var began = performance.now();
      rows = select(data, view);
      drawn = {
        equal: rows.length ? equalColumns(data, rows) : {},
        patched: rows.some(function (row) {
          return row.patches.length;
        }),
      };
      var focus = document.activeElement && document.activeElement.getAttribute("data-key");
      head(drawn.equal, drawn.patched);
      if (focus) {
        var again = table.tHead.querySelector('[data-key="' + focus + '"]');
        if (again) again.focus();
      }
      equalLine.replaceChildren();
      var names = data.components.filter(function (part) {
        return part.name in drawn.equal;
      });
      if (names.length) {
        var all = rows.length === data.stacks.length;
        equalLine.append(el("strong", {}, [all ? "All stacks:" : rows.length === 1 ? "This stack:" : "All shown stacks:"]));
        names.forEach(function (part) {
          equalLine.append(" ", el("span", {}, [part.short + " ", el("code", {}, [drawn.equal[part.name]])]));
        });
      }
      table.tBodies[0].replaceChildren();
      shown = goal = 0;
      grow();
      if (!rows.length) {
        count.textContent = "No stack is like that. That is not an answer about the software: nobody ran it here.";
      }
      compare();
      document.documentElement.dataset.mxDrawn = (performance.now() - began).toFixed(1);
    }

    function compare() {
      var both = view.compare.map(function (id) {
        return byId[id];
      }).filter(Boolean);
      panel.replaceChildren();
      panel.hidden = !both.length;
      if (both.length === 2) {
        panel.append.apply(panel, comparison(data, both[0], both[1], function () {
          view.compare = [];
          remember(false);
          draw();
          form.elements.q.focus();
        }));
      } else if (both.length === 1) {
        panel.append(el("p", {}, ["Comparing " + both[0].title + " (" + both[0].id + "): choose a second stack."]));
      }
    }

    var typing = null;
    form.addEventListener("input", function (event) {
      if (event.target.type !== "search") return;
      take();
      draw();
      // One step back for a search, not one for each letter.
      if (typing === null) remember(false);
      else remember(true);
      clearTimeout(typing);
      typing = setTimeout(function () {
        typing = null;
      }, 1000);
    });
    form.addEventListener("change", function (event) {
      if (event.target.type === "search") return;
      take();
      remember(false);
      draw();
    });
    form.addEventListener("submit", function (event) {
      event.preventDefault();
    });
    form.addEventListener("reset", function (event) {
      event.preventDefault();
      view = emptyView();
      fill();
      remember(false);
      draw();
    });
    table.addEventListener("click", function (event) {
      var button = event.target.closest("button.mx-sort");
      if (!button) return;
      var key = button.dataset.key;
      view.sort = view.sort === key ? "-" + key : view.sort === "-" + key ? "" : key;
      remember(false);
      draw();
    });
    table.addEventListener("change", function (event) {
      var box = event.target;
      if (box.type !== "checkbox") return;
      view.compare = view.compare.filter(function (id) {
        return id !== box.value;
      });
      if (box.checked) view.compare = view.compare.concat(box.value).slice(-2);
      table.querySelectorAll(".mx-pick input").forEach(function (other) {
        other.checked = view.compare.indexOf(other.value) >= 0;
      });
      remember(false);
      compare();
    });
    more.addEventListener("click", grow);
    document.getElementById("mx-json").addEventListener("click", function () {
      save("matrix-view.json", "application/json", viewJson(data, rows));
    });
    document.getElementById("mx-csv").addEventListener("click", function () {
      save("matrix-view.csv", "text/csv", viewCsv(data, rows));
    });
    document.getElementById("mx-link").addEventListener("click", function () {
      window.mxCopy(location.href, this);
    });
    window.addEventListener("popstate", function () {
      if (writeView(view) === location.search) return; // a jump within the page
      view = readView(location.search);
      fill();
      draw();
    });

    form.hidden = false;
    fill();
    draw();
  }

  /** Copies a text and says so on the button. */
  window.mxCopy = function (text, button) {
    var label = button.textContent;
    var told = function (words) {
      button.textContent = words;
      setTimeout(function () {
        button.textContent = label;
      }, 2000);
    };
    if (!navigator.clipboard) {
      window.prompt("Copy this:", text);
      return;
    }
    navigator.clipboard.writeText(text).then(
      function () {
        told("Copied");
      },
      function () {
        window.prompt("Copy this:", text);
      },
    );
  };

  // The theme makes its search a dialog and gives it no name.
  document.querySelectorAll('.md-search[role="dialog"]:not([aria-label])').forEach(function (node) {
    node.setAttribute("aria-label", "Search");
  });

  window.mxTable = { load: load, el: el, badge: badge, breakable: breakable };

  if (document.getElementById("mx-support")) {
    load(start, function () {
      document.getElementById("mx-count").append(
        " The rest could not be read, so filters are off: open this page from a web server, or take the data.",
      );
    });
  }
})();
