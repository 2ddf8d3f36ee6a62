// The page's own script: charts, the list of findings with filters and pages, and the trace of one finding.
// Text that peers wrote is only ever set as text, never as markup.
"use strict";
(() => {
  const PAGE_ROWS = 25;
  const SEARCH_DELAY_MS = 120;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("findings-data").textContent);
  const specs = JSON.parse(byId("charts-data").textContent);
  const columns = data.findings;
  const total = columns.check.length;

  // text

  const textAt = (place) => (place < 0 ? "" : data.texts[place]);

  // a time beyond what a Date can hold is shown as the number that it is
  const writeTime = (at) => {
    if (at === null) return "";
    const date = new Date((data.epoch + at) / 1000);
    if (Number.isNaN(date.getTime())) return `${(data.epoch + at).toLocaleString("en")} µs since 1970`;
    return date.toISOString().replace("T", " ").replace("Z", "");
  };

  const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));
  const hexOf = (number) => {
    const bytes = atob(data.addresses[number]);
    let text = "";
    for (let place = 0; place < bytes.length; place++) text += HEX[bytes.charCodeAt(place)];
    return text;
  };

  // messages whose fabric displays addresses in another form than hex have that form in the data
  const addressText = (number) => data.names_of[number] ?? hexOf(number);

  // without the scheme that some fabrics put before an address
  const bareAddress = (one) => one.address.slice(one.address.lastIndexOf("/") + 1);

  const make = (tag, content, className) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (typeof content === "string") node.textContent = content;
    else if (content) node.append(...content);
    return node;
  };

  // text of a cell that may break behind a slash, so that a long URI does not break within a word
  const breakable = (text) =>
    text.split(/(?<=[^/]\/)(?!\/)/).flatMap((part, place) => (place ? [document.createElement("wbr"), part] : [part]));

  // a sentence of ours; what is between backticks is code
  const prose = (words) => words.split("`").map((part, place) => (place % 2 ? make("code", part) : part));

  const groupBy = (values, keyOf) => {
    const groups = new Map();
    values.forEach((value, place) => {
      const key = keyOf(value, place);
      if (groups.has(key)) groups.get(key).push(value);
      else groups.set(key, [value]);
    });
    return groups;
  };
  const placesBy = (column) => groupBy(column.map((_, place) => place), (place) => column[place]);

  const finding = (index) => {
    const [check, severity] = data.checks[columns.check[index]];
    const guide = data.guides[check] || [check, "", ""];
    const fabric = textAt(columns.fabric[index]);
    const message = columns.message[index];
    return {
      index, check, severity, fabric, message,
      title: guide[0], meaning: guide[1], advice: guide[2],
      server: textAt(columns.server[index]),
      address: message < 0 ? "" : addressText(message),
      seq: columns.seq[index],
      time: writeTime(columns.at[index]),
      detail: textAt(columns.detail[index]),
    };
  };

  // the list: findings by their cause, or each alone

  const UNFOLDED = 25;
  const SHOWN_DETAILS = 3;
  let chosen = [];
  let rows = []; // lists of indices, one list a row
  let page = 0;

  const readFilters = () => Object.fromEntries(new FormData(byId("filters")));

  const choose = () => {
    const filters = readFilters();
    const words = filters.text.trim().toLowerCase();
    const group = Object.hasOwn(data.groups, filters.check) && data.groups[filters.check];
    const isWanted = (check) =>
      group ? group.includes(check) : filters.check.endsWith(".") ? check.startsWith(filters.check) : filters.check === check;
    const checks = data.checks.map(
      ([check, severity]) =>
        (!filters.check || isWanted(check)) && (!filters.severity || filters.severity === severity));
    const fabrics = data.texts.map((text) => !filters.fabric || text === filters.fabric);
    const texts = words ? data.texts.map((text) => text.toLowerCase().includes(words)) : null;
    const titles = words
      ? data.checks.map(([check]) => (check + " " + (data.guides[check] || [""])[0]).toLowerCase().includes(words))
      : null;
    const couldBeAddress = /^[0-9a-z:/]+$/.test(words);
    const withId = new Set(texts ? data.messages.of.filter((_, place) => texts[data.messages.id[place]]) : []);
    const isNamed = (number) =>
      withId.has(number) ||
      (couldBeAddress && (addressText(number).toLowerCase().includes(words) || hexOf(number).includes(words)));
    chosen = [];
    for (let index = 0; index < total; index++) {
      if (!checks[columns.check[index]]) continue;
      if (filters.fabric && !fabrics[columns.fabric[index]]) continue;
      if (texts && !(
        titles[columns.check[index]] || texts[columns.detail[index]] || texts[columns.server[index]] ||
        (columns.message[index] >= 0 && isNamed(columns.message[index]))
      )) continue;
      chosen.push(index);
    }
    rows = filters.show ? chosen.map((index) => [index]) : [...groupBy(chosen, (index) => columns.cause[index]).values()];
    page = 0;
    draw();
  };

  const serverName = (server) => {
    const name = data.names[server];
    const node = make("span", name === undefined ? "" : breakable(name));
    node.title = textAt(server);
    return node;
  };

  // the name shown in the list, and the URI that other tools need
  const serverInFull = ({ index, server }) => {
    const name = data.names[columns.server[index]];
    return !name || name.includes("…") || server.includes(name) ? server : `${name} (${server})`;
  };

  const button = (words, className, act) => {
    const node = make("button", words, className);
    node.type = "button";
    if (act) node.addEventListener("click", act);
    return node;
  };

  const opener = (one) => {
    const open = button(one.title, "link");
    open.dataset.finding = one.index;
    open.setAttribute("aria-haspopup", "dialog");
    return open;
  };

  // without the sealed file, which the trace shows
  const briefDetail = (detail) => detail.replace(/^fabric=\S+\.parquet: /, "");

  const row = (index) => {
    const one = finding(index);
    const where = [serverName(columns.server[index]), one.seq === null ? "" : " #" + one.seq.toLocaleString("en")];
    return make("tr", [
      make("td", [make("span", one.severity, "chip " + one.severity)]),
      make("td", [opener(one)]),
      make("td", "1", "number"),
      make("td", columns.server[index] < 0 ? one.fabric : where, "name"),
      make("td", [make("code", bareAddress(one).slice(0, 12))]),
      make("td", one.time, "time"),
      make("td", breakable(briefDetail(one.detail)), "detail"),
    ]);
  };

  const tally = (values) => {
    const counts = new Map();
    values.forEach((value) => counts.set(value, (counts.get(value) || 0) + 1));
    return [...counts.entries()].sort((one, other) => other[1] - one[1]);
  };

  const span = (times) => {
    const [begin, end] = [Math.min, Math.max].map((pick) => writeTime(times.reduce((one, other) => pick(one, other))));
    const isSameDay = begin.slice(0, 11) === end.slice(0, 11);
    return begin === end ? begin : [begin, make("br"), "to " + (isSameDay ? end.slice(11) : end)];
  };

  const causeRow = (indices) => {
    if (indices.length === 1) return [row(indices[0])];
    const leading = columns.check[indices.find((index) => data.checks[columns.check[index]][0].startsWith("delivery.")) ?? indices[0]];
    const first = finding(indices.find((index) => columns.check[index] === leading));
    const worst = data.checks[columns.check[indices[0]]][1];
    const others = tally(indices.map((index) => data.checks[columns.check[index]][0])).filter(([check]) => check !== first.check);
    const messages = new Set(indices.map((index) => columns.message[index]).filter((message) => message >= 0));
    const times = indices.map((index) => columns.at[index]).filter((at) => at !== null);
    const details = tally(indices.filter((index) => columns.check[index] === leading).map((index) => briefDetail(textAt(columns.detail[index]))));
    const isOne = messages.size === 1 && others.length === indices.length - 1;
    const unfold = button(first.title, "link unfold");
    unfold.setAttribute("aria-expanded", "false");
    const also = ([check, number]) => {
      const one = finding(indices.find((index) => data.checks[columns.check[index]][0] === check));
      return make("div", ["also: ", isOne ? opener(one) : one.title, number > 1 ? ` (${number.toLocaleString("en")})` : ""], "quiet");
    };
    const line = make("tr", [
      make("td", [make("span", worst, "chip " + worst)]),
      make("td", [isOne ? opener(first) : unfold, ...others.map(also)]),
      make("td", indices.length.toLocaleString("en"), "number"),
      make("td", columns.server[first.index] < 0 ? first.fabric : [serverName(columns.server[first.index])], "name"),
      make("td", messages.size ? `${messages.size.toLocaleString("en")} message${messages.size === 1 ? "" : "s"}` : ""),
      make("td", times.length ? span(times) : "", "time"),
      make("td", [
        ...details.slice(0, SHOWN_DETAILS).map(([text, number]) =>
          make("div", [...breakable(text), number > 1 ? ` (${number.toLocaleString("en")})` : ""])),
        ...(details.length > SHOWN_DETAILS ? [make("div", `and ${(details.length - SHOWN_DETAILS).toLocaleString("en")} more like this`, "quiet")] : []),
      ], "detail"),
    ]);
    let unfolded = [];
    unfold.addEventListener("click", () => {
      const isOpen = unfold.getAttribute("aria-expanded") === "true";
      unfold.setAttribute("aria-expanded", String(!isOpen));
      unfolded.forEach((each) => each.remove());
      unfolded = [];
      if (isOpen) return;
      unfolded = indices.slice(0, UNFOLDED).map((index) => {
        const each = row(index);
        each.className = "unfolded";
        return each;
      });
      if (indices.length > UNFOLDED) {
        const all = make("td", [button(`All ${indices.length.toLocaleString("en")} of them`, "link", () => {
          byId("filters").elements.show.value = "each";
          rows = indices.map((index) => [index]);
          page = 0;
          draw();
        })]);
        all.colSpan = line.children.length;
        unfolded.push(make("tr", [all], "unfolded"));
      }
      line.after(...unfolded);
    });
    return [line];
  };

  const draw = () => {
    const pages = Math.max(Math.ceil(rows.length / PAGE_ROWS), 1);
    page = Math.min(Math.max(page, 0), pages - 1);
    byId("list").tBodies[0].replaceChildren(...rows.slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS).flatMap(causeRow));
    byId("page").textContent = `page ${(page + 1).toLocaleString("en")} of ${pages.toLocaleString("en")}`;
    byId("previous").disabled = page === 0;
    byId("next").disabled = page === pages - 1;
    const count = `${chosen.length.toLocaleString("en")} of ${data.total.toLocaleString("en")} findings`;
    const causes = rows.length < chosen.length ? `${count}, ${rows.length.toLocaleString("en")} causes` : count;
    byId("found").textContent =
      data.total > total ? `${causes}; this page contains the worst ${total.toLocaleString("en")}` : causes;
  };

  const turn = (step) => {
    page += step;
    draw();
    byId("filters").scrollIntoView({ block: "start" });
  };

  const filterList = ({ filterCheck, filterSeverity }) => {
    const form = byId("filters");
    form.reset();
    form.elements.check.value = filterCheck || "";
    form.elements.severity.value = filterSeverity || "";
    choose();
    form.scrollIntoView({ block: "start" });
    const first = byId("list").querySelector("button");
    if (first) first.focus({ preventScroll: true });
  };

  // the trace of one finding

  let hopsOf = null;
  let messageOf = null;

  const facts = (pairs) =>
    make("dl", pairs.filter(([, value]) => value).flatMap(([name, value]) => [
      make("dt", name),
      make("dd", typeof value === "string" ? value : [value]),
    ]), "facts");

  const command = (text) => {
    const copy = button("Copy", "copy", async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(copy.previousSibling);
      }
    });
    return make("p", [make("code", text), copy], "command");
  };

  // the receipt of a message, if the page contains it, as a file with exactly these bytes
  let offered = null;
  const receiptOf = (one) => {
    if (offered) URL.revokeObjectURL(offered);
    offered = null;
    const place = data.receipts.of.indexOf(one.message);
    const build = command(`dovetail receipt build ${one.address} --lake ${data.lake || "LAKE"} -o receipt`);
    if (place < 0) {
      const without = data.receipts.without.indexOf(one.message);
      return without < 0 ? [build] : [make("p", "No receipt: " + data.receipts.reason[without], "quiet"), build];
    }
    const text = data.receipts.text[place];
    const name = `${bareAddress(one).slice(0, 16)}.receipt`;
    const save = make("a", "Download the receipt", "copy");
    const file = new Blob([text], { type: "application/json" });
    offered = URL.createObjectURL(file);
    save.href = offered;
    save.download = name;
    const size = file.size.toLocaleString("en");
    return [
      make("p", [save, make("span", `${size} bytes; proves what happened to this message, offline and to anyone`, "quiet")], "command"),
      command(`dovetail receipt verify ${name} --trust KEYS`),
    ];
  };

  const messageFacts = (number) => {
    messageOf ||= placesBy(data.messages.of);
    const place = (messageOf.get(number) || [])[0];
    if (place === undefined) return [make("p", "The bytes of this message are not in the lake.", "quiet")];
    const field = (name) => textAt(data.messages[name][place]);
    return [facts([
      ["type", field("type")], ["from", field("sender")], ["for", field("recipients")], ["id", field("id")],
      ["made", writeTime(data.messages.created[place])], ["expires", writeTime(data.messages.expires[place])],
      ["bytes", data.messages.size[place] === null ? "" : data.messages.size[place].toLocaleString("en")],
      ["signed by", field("signer")], ["signature", field("signature")],
    ])];
  };

  const hopTable = (number, focus) => {
    hopsOf ||= placesBy(data.hops.of);
    const places = hopsOf.get(number) || [];
    const cut = data.hops.cut.find(([of]) => of === number);
    if (!places.length) {
      return [make("p", cut ? `${cut[1]} hops, which are not in this page; the command below shows them.` : "None of its hops could be read.", "quiet")];
    }
    const start = data.hops.at[places[0]];
    const rows = places.map((place) => {
      const since = data.hops.at[place] - start;
      // hops of one turn have one time: no difference was measured
      const after = since ? "+" + (since / 1000).toLocaleString("en", { maximumFractionDigits: 3 }) + " ms" : "";
      const line = make("tr", [
        make("td", place === places[0] ? writeTime(data.hops.at[place]).slice(11) : after, "number"),
        make("td", [make("strong", textAt(data.hops.stage[place]))]),
        make("td", [serverName(data.hops.server[place]), " #" + data.hops.seq[place].toLocaleString("en")], "name"),
        make("td", data.hops.with[place] in data.names ? [serverName(data.hops.with[place])] : textAt(data.hops.with[place]), "name"),
        make("td", textAt(data.hops.reason[place]).replaceAll("_", " ")),
      ]);
      if (focus(place)) line.className = "focus";
      return line;
    });
    const heads = ["time", "stage", "server and hop", "from or to", "reason"].map((head) => {
      const cell = make("th", head);
      cell.scope = "col";
      return cell;
    });
    const table = make("table", [make("thead", [make("tr", heads)]), make("tbody", rows)]);
    const more = cut && cut[1] > places.length ? [make("p", `and ${cut[1] - places.length} more hops`, "quiet")] : [];
    const frame = make("div", [table], "scroll");
    frame.tabIndex = 0;
    return [frame, ...more];
  };

  const openTrace = (index) => {
    const one = finding(index);
    const close = button("Close", "close", () => byId("trace").close());
    const title = make("h2", one.title);
    title.id = "trace-title";
    const parts = [
      make("header", [make("span", one.severity, "chip " + one.severity), title, close]),
      make("p", prose(one.meaning + " " + one.advice), "lead"),
      facts([
        ["found", one.detail], ["check", make("code", one.check)], ["fabric", one.fabric], ["server", serverInFull(one)],
        ["hop", one.seq === null ? "" : one.seq.toLocaleString("en")], ["time (UTC)", one.time],
        ["message", one.address && make("code", one.address)],
      ]),
    ];
    if (one.message >= 0) {
      const isHere = (place) => one.seq !== null && data.hops.seq[place] === one.seq && textAt(data.hops.server[place]) === one.server;
      parts.push(make("h3", "The message"), ...messageFacts(one.message));
      parts.push(make("h3", "What each server saw"), ...hopTable(one.message, isHere));
      for (const template of document.querySelectorAll(`template[data-of="${one.message}"]`)) {
        parts.push(template.content.cloneNode(true));
      }
      parts.push(make("h3", "More"), command(`dovetail audit why ${one.address} --tables ${data.tables}`));
      parts.push(make("h3", "Proof"), ...receiptOf(one));
    } else if (one.server) {
      parts.push(make("h3", "More"), command(`dovetail audit show integrity --tables ${data.tables}`));
    }
    byId("trace").firstElementChild.replaceChildren(...parts);
    const dialog = byId("trace");
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    history.replaceState(null, "", "#finding-" + index);
  };

  const openFromHash = () => {
    const match = /^#finding-(\d+)$/.exec(location.hash);
    if (match && Number(match[1]) < total) openTrace(Number(match[1]));
  };

  // charts

  const drawCharts = async () => {
    const config = {
      background: null,
      font: getComputedStyle(document.body).fontFamily,
      axis: { labelFontSize: 11, titleFontSize: 11, titleFontWeight: 500, domain: false, ticks: false, labelPadding: 6, titlePadding: 8 },
      view: { stroke: null },
      bar: { discreteBandSize: { band: 0.72 } },
    };
    // ast: expressions are interpreted, not compiled, so that the policy needs no 'unsafe-eval'
    const options = { ast: true, actions: false, renderer: "svg", defaultStyle: false, config, tooltip: { theme: "plain", disableDefaultStyle: true } };
    for (const place of document.querySelectorAll("[data-chart]")) {
      const spec = specs[place.dataset.chart];
      const frame = { width: "container", autosize: { type: "fit-x", contains: "padding" } };
      await window.vegaEmbed(place, { $schema: "https://vega.github.io/schema/vega-lite/v6.json", ...frame, ...spec }, options);
    }
    document.documentElement.dataset.charts = "drawn";
  };

  // dark and light

  const keep = (theme) => {
    try {
      localStorage.setItem("dovetail-theme", theme);
    } catch {
      // a page opened from a file may have no storage: the choice is then not remembered
    }
  };

  const recall = () => {
    try {
      return localStorage.getItem("dovetail-theme");
    } catch {
      return null;
    }
  };

  const switchTheme = () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    keep(root.dataset.theme);
  };

  // begin

  const remembered = recall();
  if (remembered === "dark" || remembered === "light") document.documentElement.dataset.theme = remembered;
  byId("theme").addEventListener("click", switchTheme);
  if (byId("filters")) {
    let waiting = 0;
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("filters").addEventListener("change", choose);
    byId("filters").elements.text.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(choose, SEARCH_DELAY_MS);
    });
    byId("previous").addEventListener("click", () => turn(-1));
    byId("next").addEventListener("click", () => turn(1));
    choose();
  }
  document.addEventListener("click", (event) => {
    const pressed = event.target.closest("[data-finding], [data-filter-check]");
    if (!pressed) return;
    if (pressed.dataset.finding !== undefined) openTrace(Number(pressed.dataset.finding));
    else if (byId("filters")) {
      event.preventDefault();
      filterList(pressed.dataset);
    }
  });
  byId("trace").addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
  byId("trace").addEventListener("click", (event) => {
    if (event.target === byId("trace")) byId("trace").close();
  });
  addEventListener("hashchange", openFromHash);
  openFromHash();
  drawCharts();
})();
