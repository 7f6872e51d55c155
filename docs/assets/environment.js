/* "Your environment": reads a pasted list of packages and finds the tested stack that equals it, or
   the nearest ones. All of it happens here; nothing pasted is sent anywhere. */
(function () {
  "use strict";

  var SHOWN = 5;
  var SHA = /^[0-9a-f]{7,40}$/;

  /* Reading what was pasted. */

  /** A distribution's name as package indexes compare it. */
  function canonical(name) {
    return name.trim().toLowerCase().replace(/\[.*\]$/, "").replace(/[-_.]+/g, "-");
  }

  /** Which component a name means, or null. A bare "cudnn" is the library, or the frontend's module. */
  function componentOf(data, name, version) {
    var plain = name.trim().toLowerCase();
    var wanted = [plain, canonical(name), plain.replace(/\s+(version|backend version|library version)$/, "")];
    if (/^cudnn( backend| library)?$/.test(wanted[2])) {
      var small = /^v?[01]\./.test(version);
      wanted = [small ? "nvidia-cudnn-frontend" : "nvidia-cudnn"];
    }
    if (/^nvidia-cudnn-cu\d+$/.test(wanted[1])) wanted = ["nvidia-cudnn"];
    var found = data.components.find(function (part) {
      return wanted.some(function (one) {
        return part.name === one || part.names.indexOf(one) >= 0;
      });
    });
    return found ? found.name : null;
  }

  /** A version without what says for which CUDA it was built. */
  function plainVersion(text) {
    var version = text.trim().replace(/^["']|["',;]+$/g, "").toLowerCase();
    if (/^v\d/.test(version)) version = version.slice(1);
    version = version.replace(/\+(cu\d+|cpu|rocm[\w.]*|xpu|git[0-9a-f]+|computecanada|nv[\w.]*)$/, "");
    // The library's own number: 91900 is 9.19.0, and 8907 was 8.9.7.
    var number = /^(\d{4,6})$/.exec(version);
    if (number) {
      var value = Number(number[1]);
      var unit = value >= 90000 ? 10000 : 1000;
      return Math.floor(value / unit) + "." + Math.floor((value % unit) / 100) + "." + (value % 100);
    }
    return version;
  }

  function parse(data, text) {
    var answer = { versions: {}, patches: null, unclear: [], twice: [] };
    var json = fromJson(text);
    if (json) {
      json.pairs.forEach(function (pair) {
        add(data, answer, pair[0], pair[1]);
      });
      answer.patches = json.patches;
      return answer;
    }
    text
      .replace(/\\\r?\n/g, " ") // a requirement with hashes goes on over lines
      .split(/\r?\n/)
      .forEach(function (line) {
        readLine(data, answer, line);
      });
    return answer;
  }

  function fromJson(text) {
    var value;
    try {
      value = JSON.parse(text);
    } catch (error) {
      return null;
    }
    if (!value || typeof value !== "object") return null;
    var pairs = [];
    var patches = null;
    if (Array.isArray(value)) {
      // pip list --format=json
      value.forEach(function (one) {
        if (one && typeof one.name === "string") pairs.push([one.name, String(one.version || "")]);
      });
    } else {
      var stack = value.stack && typeof value.stack === "object" ? value.stack : value;
      var asked = stack.requested || stack.components || stack;
      if (Array.isArray(asked)) {
        asked.forEach(function (one) {
          if (one && one.component) pairs.push([String(one.component), String(one.version)]);
        });
      } else {
        Object.keys(asked).forEach(function (name) {
          if (typeof asked[name] === "string") pairs.push([name, asked[name]]);
        });
      }
      if (Array.isArray(stack.patches)) {
        patches = stack.patches.map(function (patch) {
          return typeof patch === "string" ? patch : String((patch && patch.id) || "");
        });
      }
    }
    return { pairs: pairs, patches: patches };
  }

  function readLine(data, answer, raw) {
    var line = raw.replace(/\s+#.*$/, "").trim();
    if (!line || line[0] === "#" || /^-{2,}/.test(line)) return;
    line = line.replace(/\s+--hash=\S+/g, "").replace(/\s*;.*$/, "");
    var git = /git\+\S+?@([0-9a-fA-F]{7,40})\b(\S*)/.exec(line);
    if (git) {
      var egg = /#egg=([\w.-]+)/.exec(git[2]);
      var named = /^([\w.-]+(?:\[[^\]]*\])?)\s*@/.exec(line);
      var where = /\/([\w.-]+?)(?:\.git)?@/.exec(line.replace(/^.*git\+/, ""));
      var name = named ? named[1] : egg ? egg[1] : where ? where[1] : "";
      if (/^megatron-lm$/i.test(name)) name = "megatron-core";
      add(data, answer, name, git[1]);
      return;
    }
    var exact =
      /^(?:[-*]\s+)?([A-Za-z][\w.-]*(?:\[[^\]]*\])?)\s*={2,3}\s*([^\s,]+)$/.exec(line) ||
      /^(?:[-*]\s+)?([A-Za-z][\w .()/-]*?)\s*[:=]\s+(v?\d\S*|[0-9a-f]{7,40})(?:\s.*)?$/.exec(line) ||
      /^(?:[-*]\s+)?([A-Za-z][\w.-]*)\s*:\s*(v?\d\S*|[0-9a-f]{7,40})$/.exec(line) ||
      /^(?:[-*]\s+)?([A-Za-z][\w.-]*(?:\[[^\]]*\])?)\s+(v?\d[\w.+!-]*|[0-9a-f]{40})(?:\s.*)?$/.exec(line) ||
      /^\|?\s*([A-Za-z][\w.-]*)\s*\|\s*(v?\d\S*)\s*\|?/.exec(line);
    if (exact) {
      add(data, answer, exact[1].replace(/\s*\(.*\)$/, ""), exact[2]);
      return;
    }
    var loose = /^([A-Za-z][\w.-]*(?:\[[^\]]*\])?)\s*(?:[<>~!]=?|@|$)/.exec(line);
    if (loose && componentOf(data, loose[1], "")) answer.unclear.push(line.slice(0, 120));
  }

  function add(data, answer, name, version) {
    var component = componentOf(data, name, version);
    if (!component || !version || version === "system") return;
    var part = data.components.find(function (one) {
      return one.name === component;
    });
    var text = SHA.test(version.toLowerCase()) && part.kind === "git" ? version.toLowerCase() : plainVersion(version);
    // FlashMLA's local part names its revision, so it stays.
    if (part.kind === "image") text = version.trim();
    var before = answer.versions[component];
    if (before !== undefined && before !== text) {
      // A release says less than a revision, and three numbers less than four.
      if (part.kind === "git" && SHA.test(before) && !/^[0-9a-f]*$/.test(text)) return;
      if (before.indexOf(text + ".") === 0) return;
      if (text.indexOf(before + ".") !== 0) answer.twice.push(part.title + ": " + before + " and " + text);
    }
    answer.versions[component] = text;
  }

  /* Finding stacks. */

  function sameVersion(part, asked, has) {
    if (asked === has) return true;
    if (has === "none" || has === "system" || asked === "none") return false;
    if (part.kind === "git") return SHA.test(asked) && has.indexOf(asked) === 0;
    if (part.kind === "cudnn") {
      var shorter = asked.split(".").length < has.split(".").length ? [asked, has] : [has, asked];
      return shorter[0].split(".").length >= 3 && shorter[1].indexOf(shorter[0] + ".") === 0;
    }
    return trim(asked) === trim(has);
  }

  /** 1.2.0 and 1.2 are the same release. */
  function trim(version) {
    return version.replace(/(\.0)+$/, "");
  }

  function numbers(version) {
    return (version.match(/\d+/g) || []).map(Number);
  }

  /** How far apart two versions are: a first number weighs more than a later one. */
  function apart(one, other) {
    var a = numbers(one);
    var b = numbers(other);
    for (var at = 0; at < Math.max(a.length, b.length); at++) {
      var step = Math.abs((a[at] || 0) - (b[at] || 0));
      if (step) return (step / (step + 8) + (2 - at)) / 3;
    }
    return 0;
  }

  /** Every stack with evidence, nearest first. What was not given is open, and counts a little. */
  function nearest(data, asked, patches) {
    var found = data.stacks
      .filter(function (row) {
        return row.day !== null;
      })
      .map(function (row) {
        var differs = [];
        var open = [];
        var distance = 0;
        data.components.forEach(function (part, at) {
          var has = part.versions[row.versions[at]];
          var given = asked[part.name];
          if (given === undefined) {
            if (has !== "none") {
              open.push({ part: part, has: has });
              distance += 0.3;
            }
          } else if (!sameVersion(part, given, has)) {
            differs.push({ part: part, given: given, has: has });
            distance += 1 + (part.kind === "git" ? 0.5 : 0.5 * apart(given, has));
          }
        });
        var named = row.patches.map(function (place) {
          return data.patches[place].id;
        });
        var samePatches = patches === null ? !named.length : patches.join() === named.join();
        if (!samePatches) distance += 0.6;
        return { row: row, differs: differs, open: open, patches: named, samePatches: samePatches, distance: distance };
      });
    found.sort(function (a, b) {
      return a.distance - b.distance || (a.row.id < b.row.id ? -1 : 1);
    });
    return found;
  }

  function isExact(found) {
    return !found.differs.length && !found.open.length && found.samePatches;
  }

  /* What is shown. */

  function start(data) {
    var el = window.mxTable.el;
    var badge = window.mxTable.badge;
    var form = document.getElementById("mx-environment");
    var paste = document.getElementById("mx-paste");
    var notices = document.getElementById("mx-notices");
    var verdict = document.getElementById("mx-verdict");
    var list = document.getElementById("mx-nearest");
    var issue = document.getElementById("mx-issue");
    var markdown = document.getElementById("mx-markdown");
    var patches = null;

    function fields() {
      return data.components.map(function (part) {
        return form.elements[part.name];
      });
    }

    function given() {
      var asked = {};
      fields().forEach(function (field) {
        if (field.value.trim()) asked[field.name] = field.value.trim();
      });
      return asked;
    }

    function show(read) {
      var asked = given();
      notices.replaceChildren();
      ((read && read.unclear) || []).forEach(function (line) {
        notices.append(el("p", {}, ["Not an exact version, so not used: ", el("code", {}, [line])]));
      });
      ((read && read.twice) || []).forEach(function (line) {
        notices.append(el("p", {}, ["Named twice, the last is used: " + line]));
      });
      var core = asked["megatron-core"];
      if (core && !SHA.test(core)) {
        notices.append(el("p", {}, ["Megatron Core by its release number: where it was installed from git, give the revision instead."]));
      }
      verdict.replaceChildren();
      list.replaceChildren();
      issue.hidden = !Object.keys(asked).length;
      if (issue.hidden) {
        if (paste.value.trim()) {
          verdict.append(el("p", {}, ["No component of the matrix was found in that text."]));
        }
        return;
      }
      var found = nearest(data, asked, patches);
      var exact = found.filter(isExact);
      verdict.append.apply(verdict, exact.length ? exactAnswer(exact[0]) : noAnswer(found));
      var others = found.filter(function (one) {
        return one !== exact[0];
      });
      if (others.length) {
        list.append(el("h2", { id: "nearest" }, [exact.length ? "Nearest others" : "Nearest tested stacks"]));
        list.append(el("ol", { class: "mx-near" }, others.slice(0, SHOWN).map(nearItem)));
        list.append(el("p", {}, ["A near stack is a hint and no more: an answer holds for the exact combination."]));
      }
      markdown.value = paragraph(asked, exact[0], found);
    }

    function stackLink(row) {
      return el("a", { href: "stacks/" + row.id + ".html" }, [row.title + " (" + row.id + ")"]);
    }

    function exactAnswer(found) {
      var row = found.row;
      return [
        el("h2", { id: "answer" }, ["This exact stack was tested"]),
        el("p", {}, [badge("v", data.word["v:" + row.verdict]), row.stale ? " (stale) " : " ", stackLink(row), ": " + row.why]),
      ];
    }

    function noAnswer(found) {
      var open = found.length && !found[0].differs.length && found[0].samePatches;
      return [
        el("h2", { id: "answer" }, ["Unknown"]),
        el("p", {}, [
          open
            ? "What you gave fits a tested stack, but not every component was given. See below what is missing."
            : "Nobody has tested this exact combination here. That is no sign of a fault, and none of its absence.",
        ]),
      ];
    }

    function nearItem(one) {
      var parts = one.differs.map(function (difference) {
        return el("li", {}, [
          difference.part.title + ": yours ",
          el("code", {}, [shorten(difference.given)]),
          ", tested ",
          el("code", {}, [shorten(difference.has)]),
        ]);
      });
      one.open.forEach(function (open) {
        parts.push(el("li", {}, [open.part.title + ": not given, tested ", el("code", {}, [shorten(open.has)])]));
      });
      if (!one.samePatches) {
        parts.push(el("li", {}, [one.patches.length ? "It has patches: " + one.patches.join(", ") : "It has no patches."]));
      }
      var row = one.row;
      return el("li", {}, [
        badge("v", data.word["v:" + row.verdict]),
        " ",
        stackLink(row),
        ": " + row.why,
        el("ul", {}, parts.length ? parts : [el("li", {}, ["No difference in what you gave."])]),
      ]);
    }

    function shorten(version) {
      return /^[0-9a-f]{40}$/.test(version) ? version.slice(0, 9) : version;
    }

    /** Text that means itself in Markdown. */
    function literal(text) {
      return text.replace(/[\\`*_{}[\]<>()#+!|~@]/g, "\\$&").replace(/\s+/g, " ");
    }

    function code(text) {
      return "`" + text.replace(/[`\s]+/g, " ") + "`";
    }

    function address(row) {
      return new URL("stacks/" + row.id + ".html", location.href).href;
    }

    function paragraph(asked, exact, found) {
      var mine = data.components
        .filter(function (part) {
          return asked[part.name];
        })
        .map(function (part) {
          return part.title + " " + code(asked[part.name]);
        })
        .join(", ");
      var text = "My environment: " + mine + ". ";
      var table = "the [" + literal(data.name) + "](" + location.href + ")";
      var date = data.day ? " (data of " + data.day + ")" : "";
      if (exact) {
        text += "In " + table + date + " this exact stack, [" + literal(exact.row.title) + " " + exact.row.id + "](" + address(exact.row) +
          "), is **" + exact.row.verdict + "**: " + literal(exact.row.why) + ".";
      } else {
        text += "In " + table + date + " this combination is **unknown**: it was not tested.";
        if (found.length) {
          var one = found[0];
          var differs = one.differs.map(function (difference) {
            return difference.part.title + " (" + code(shorten(difference.has)) + " there)";
          });
          text += " The nearest tested stack, [" + literal(one.row.title) + " " + one.row.id + "](" + address(one.row) + "), is **" +
            one.row.verdict + "** (" + literal(one.row.why) + ")" +
            (differs.length ? " and differs in " + differs.join(", ") : "") + ".";
        }
      }
      return text;
    }

    function remember() {
      var query = new URLSearchParams();
      var asked = given();
      data.components.forEach(function (part) {
        if (asked[part.name]) query.set(part.name, asked[part.name]);
      });
      if (patches && patches.length) query.set("patches", patches.join(","));
      var text = query.toString();
      try {
        history.replaceState(null, "", location.pathname + location.search + (text ? "#" + text : ""));
      } catch (error) {
        // A page opened from a disk may not change its address.
      }
    }

    function restore() {
      var query = new URLSearchParams(location.hash.slice(1));
      var any = false;
      fields().forEach(function (field) {
        field.value = query.get(field.name) || "";
        any = any || Boolean(field.value);
      });
      patches = query.get("patches") ? query.get("patches").split(",") : null;
      if (any) show(null);
      return any;
    }

    paste.addEventListener("input", function () {
      var read = parse(data, paste.value);
      patches = read.patches;
      fields().forEach(function (field) {
        field.value = read.versions[field.name] || "";
      });
      remember();
      show(read);
    });
    form.addEventListener("input", function (event) {
      if (event.target === paste) return;
      remember();
      show(null);
    });
    form.addEventListener("submit", function (event) {
      event.preventDefault();
    });
    form.addEventListener("reset", function () {
      setTimeout(function () {
        patches = null;
        remember();
        show(null);
      });
    });
    document.getElementById("mx-env-link").addEventListener("click", function () {
      window.mxCopy(location.href, this);
    });
    document.getElementById("mx-markdown-copy").addEventListener("click", function () {
      window.mxCopy(markdown.value, this);
    });
    window.addEventListener("hashchange", restore);

    form.hidden = false;
    restore();
    document.documentElement.dataset.mxReady = "environment";
  }

  window.mxEnvironment = { parse: parse, nearest: nearest };

  if (document.getElementById("mx-environment")) {
    window.mxTable.load(start, function () {
      document.getElementById("mx-notices").append("The table could not be read: open this page from a web server.");
    });
  }
})();
